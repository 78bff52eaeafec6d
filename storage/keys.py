"""Signing keys of other servers: `federation.keys.KeyStore` on Synapse's two tables for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, and_, select, text

from federation.keys import KeyPair, StoredKey
from storage import bulk
from storage.database import Database
from storage.schema import server_keys_json, server_signature_keys


class DatabaseKeyStore:
    """Keeps keys in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_keys(self, pairs: Collection[KeyPair]) -> dict[KeyPair, StoredKey]:
        """The keys that are known of `pairs`."""
        return await self._database.read(load_keys, pairs)

    async def store_keys(self, keys: Sequence[StoredKey]) -> None:
        """Keep `keys`, in place of what was known of them."""
        await self._database.run(store_keys, keys)


def load_keys(connection: Connection, pairs: Collection[KeyPair]) -> dict[KeyPair, StoredKey]:
    """The keys that are known of `pairs`, each a server name and a key id."""
    keys, jsons = server_signature_keys, server_keys_json
    wanted = set(pairs)
    rows = connection.execute(
        select(
            keys.c.server_name,
            keys.c.key_id,
            keys.c.verify_key,
            keys.c.from_server,
            keys.c.ts_added_ms,
            keys.c.ts_valid_until_ms,
            jsons.c.key_json,
        )
        .outerjoin(
            jsons,
            and_(
                jsons.c.server_name == keys.c.server_name,
                jsons.c.key_id == keys.c.key_id,
                jsons.c.from_server == keys.c.from_server,
            ),
        )
        .where(bulk.is_in(connection, keys.c.server_name, {server for server, _ in wanted}))
    )
    return {
        (row.server_name, row.key_id): StoredKey(
            row.server_name,
            row.key_id,
            bytes(row.verify_key),
            row.from_server,
            row.ts_added_ms,
            row.ts_valid_until_ms,
            bytes(row.key_json or b""),
        )
        for row in rows
        if (row.server_name, row.key_id) in wanted
    }


def store_keys(connection: Connection, keys: Sequence[StoredKey]) -> None:
    """Keep `keys`, in place of what was known of them.

    Keys whose names a database cannot hold are left out: no signature refers to them.
    """
    # In a fixed order, so that two transactions never wait for each other's rows.
    rows = [
        key._asdict()
        for key in sorted(keys)
        if bulk.is_storable(key.server_name) and bulk.is_storable(key.key_id)
    ]
    if not rows:
        return
    connection.execute(
        text(
            "INSERT INTO server_signature_keys (server_name, key_id, from_server, ts_added_ms,"
            " ts_valid_until_ms, verify_key) VALUES (:server_name, :key_id, :from_server,"
            " :ts_added_ms, :ts_valid_until_ms, :verify_key)"
            " ON CONFLICT (server_name, key_id) DO UPDATE SET"
            " from_server = excluded.from_server, ts_added_ms = excluded.ts_added_ms,"
            " ts_valid_until_ms = excluded.ts_valid_until_ms, verify_key = excluded.verify_key"
        ),
        rows,
    )
    connection.execute(
        text(
            "INSERT INTO server_keys_json (server_name, key_id, from_server, ts_added_ms,"
            " ts_valid_until_ms, key_json) VALUES (:server_name, :key_id, :from_server,"
            " :ts_added_ms, :ts_valid_until_ms, :key_json)"
            " ON CONFLICT (server_name, key_id, from_server) DO UPDATE SET"
            " ts_added_ms = excluded.ts_added_ms,"
            " ts_valid_until_ms = excluded.ts_valid_until_ms, key_json = excluded.key_json"
        ),
        rows,
    )
