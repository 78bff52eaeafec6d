"""Signing keys of other servers in the database."""

from __future__ import annotations

from federation.keys import KeyStore, StoredKey
from storage.database import Database
from storage.keys import DatabaseKeyStore


def _key(server: str, key_id: str, valid_until: int = 5, **changes) -> StoredKey:
    key = StoredKey(server, key_id, b"\0" * 31 + b"\xff", "notary", 3, valid_until, b'{"a":1}')
    return key._replace(**changes)


async def test_keys_are_kept(database: Database) -> None:
    keys: KeyStore = DatabaseKeyStore(database)
    given = [_key("a.org", "ed25519:1"), _key("a.org", "ed25519:2"), _key("b.org", "ed25519:1")]
    await keys.store_keys(given)
    await keys.store_keys([])
    pairs = [("a.org", "ed25519:1"), ("b.org", "ed25519:1"), ("b.org", "ed25519:9"), ("\0", "x")]
    assert await keys.load_keys(pairs) == {
        ("a.org", "ed25519:1"): given[0],
        ("b.org", "ed25519:1"): given[2],
    }
    assert await keys.load_keys([]) == {}


async def test_newer_keys_take_their_place(database: Database) -> None:
    keys = DatabaseKeyStore(database)
    await keys.store_keys([_key("a.org", "k")])
    newer = _key("a.org", "k", 99, from_server="a.org", key_json=b"\xff\0", verify_key=b"b" * 32)
    await keys.store_keys([newer])
    assert await keys.load_keys([("a.org", "k")]) == {("a.org", "k"): newer}


async def test_names_that_no_database_can_hold(database: Database) -> None:
    keys = DatabaseKeyStore(database)
    await keys.store_keys([_key("a\0.org", "k"), _key("a.org", "\ud800"), _key("a.org", "k")])
    assert list(await keys.load_keys([("a\0.org", "k"), ("a.org", "k")])) == [("a.org", "k")]
