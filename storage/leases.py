"""Leases: at most one instance works on a room, and never a dead one for long.

A lease is a row of `worker_locks` with a random token. Whoever has the token has the lease until
`last_renewed_ts` is older than the time to live *and* somebody else takes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, select, text, update

from storage import bulk
from storage.errors import LeaseLost
from storage.schema import partial_state_rooms, worker_locks

LOCK_NAME = "resync_room"

DEFAULT_TTL_MS = 60_000
"""How long a lease lasts without being renewed, where nobody says otherwise."""


class Lease(NamedTuple):
    """A lease that is held; times in ms."""

    instance_name: str
    token: str
    last_renewed_ts: int


def acquire(
    connection: Connection,
    key: str,
    instance_name: str,
    token: str,
    now_ms: int,
    ttl_ms: int = DEFAULT_TTL_MS,
) -> bool:
    """Take the lease on `key` if nobody has it, if it has expired, or if `token` has it already.

    Of several that try at once, one gets it.
    """
    taken = connection.execute(
        text(
            "INSERT INTO worker_locks"
            " (lock_name, lock_key, instance_name, token, last_renewed_ts)"
            " VALUES (:lock_name, :key, :instance_name, :token, :now_ms)"
            " ON CONFLICT (lock_name, lock_key) DO UPDATE SET"
            " instance_name = excluded.instance_name, token = excluded.token,"
            " last_renewed_ts = excluded.last_renewed_ts"
            " WHERE worker_locks.last_renewed_ts < :expired_ms"
            " OR worker_locks.token = excluded.token"
        ),
        {
            "lock_name": LOCK_NAME,
            "key": key,
            "instance_name": instance_name,
            "token": token,
            "now_ms": now_ms,
            "expired_ms": now_ms - ttl_ms,
        },
    )
    return taken.rowcount == 1


def renew(connection: Connection, key: str, token: str, now_ms: int) -> bool:
    """Keep the lease on `key`; False: another instance has it, or nobody."""
    return bool(renew_all(connection, {key: token}, now_ms))


def renew_all(connection: Connection, tokens: Mapping[str, str], now_ms: int) -> set[str]:
    """Keep several leases, given as key to token; returns the keys that are still ours."""
    held = {
        key for key, lease in _load(connection, tokens.keys()).items() if lease.token == tokens[key]
    }
    updated = connection.scalars(
        update(worker_locks)
        .where(
            worker_locks.c.lock_name == LOCK_NAME,
            bulk.is_in(connection, worker_locks.c.lock_key, held),
            bulk.is_in(connection, worker_locks.c.token, {tokens[key] for key in held}),
        )
        .values(last_renewed_ts=now_ms)
        .returning(worker_locks.c.lock_key)
    )
    return set(updated)


def release(connection: Connection, key: str, token: str) -> bool:
    """Give the lease on `key` up; False: `token` did not have it any more."""
    deleted = connection.execute(
        delete(worker_locks).where(_is(key), worker_locks.c.token == token)
    )
    return deleted.rowcount == 1


def forget_expired(connection: Connection, now_ms: int, ttl_ms: int = DEFAULT_TTL_MS) -> int:
    """Remove expired leases on rooms that nobody will lease again; returns how many.

    An instance that dies after the last of its work on a room and before `release` leaves one.
    """
    deleted = connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == LOCK_NAME,
            worker_locks.c.last_renewed_ts < now_ms - ttl_ms,
            ~exists().where(partial_state_rooms.c.room_id == worker_locks.c.lock_key),
        )
    )
    return deleted.rowcount


def assert_held(connection: Connection, key: str, token: str) -> None:
    """Make sure that the lease on `key` is ours until this transaction has ended.

    Raises:
        LeaseLost: it is not.
    """
    # FOR SHARE makes a takeover wait for our commit. SQLite has one writer anyway.
    query = select(worker_locks.c.token).where(_is(key)).with_for_update(read=True)
    if connection.scalar(query) != token:
        raise LeaseLost(key)


def holder(
    connection: Connection, key: str, now_ms: int, ttl_ms: int = DEFAULT_TTL_MS
) -> Lease | None:
    """Who has a live lease on `key`."""
    return holders(connection, [key], now_ms, ttl_ms).get(key)


def holders(
    connection: Connection, keys: Collection[str], now_ms: int, ttl_ms: int = DEFAULT_TTL_MS
) -> dict[str, Lease]:
    """Who has a live lease on each of `keys` that has one."""
    return {
        key: lease
        for key, lease in _load(connection, keys).items()
        if lease.last_renewed_ts >= now_ms - ttl_ms
    }


def _is(key: str) -> ColumnElement[bool]:
    return and_(worker_locks.c.lock_name == LOCK_NAME, worker_locks.c.lock_key == key)


def _load(connection: Connection, keys: Collection[str]) -> dict[str, Lease]:
    rows = connection.execute(
        select(
            worker_locks.c.lock_key,
            worker_locks.c.instance_name,
            worker_locks.c.token,
            worker_locks.c.last_renewed_ts,
        ).where(
            worker_locks.c.lock_name == LOCK_NAME,
            bulk.is_in(connection, worker_locks.c.lock_key, keys),
        )
    )
    return {key: Lease(*lease) for key, *lease in rows}
