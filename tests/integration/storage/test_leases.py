"""Leases: one holder at a time, and never a dead one for long."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Connection, insert

from storage import leases
from storage.database import Database
from storage.errors import LeaseLost
from storage.schema import partial_state_rooms, rooms

KEY = "!room:example.com"
TTL = 1000


async def test_one_of_many_gets_it(database: Database) -> None:
    tries = [
        database.run(leases.acquire, KEY, f"worker{n}", f"token{n}", 5000, TTL) for n in range(8)
    ]
    results = await asyncio.gather(*tries)
    assert sorted(results) == [False] * 7 + [True]
    winner = results.index(True)
    lease = await database.run(leases.holder, KEY, 5000, TTL)
    assert lease == (f"worker{winner}", f"token{winner}", 5000)


async def test_expiry_and_takeover(database: Database) -> None:
    async def acquire(token: str, now: int) -> bool:
        return await database.run(leases.acquire, KEY, "w", token, now, TTL)

    assert await acquire("a", 0)
    assert not await acquire("b", 1000)
    assert await acquire("a", 500)
    assert not await acquire("b", 1500)
    assert await database.run(leases.holder, KEY, 1501, TTL) is None
    # Expired, but nobody has taken it: its holder may go on.
    assert await database.run(leases.renew, KEY, "a", 1600)
    assert not await acquire("b", 2600)
    assert await acquire("b", 2601)
    assert not await database.run(leases.renew, KEY, "a", 2602)
    assert await database.run(leases.renew, KEY, "b", 2603)
    # The old holder cannot give away what it does not have.
    assert not await database.run(leases.release, KEY, "a")
    assert not await acquire("a", 2604)
    assert await database.run(leases.release, KEY, "b")
    assert await acquire("a", 2604)


async def test_renewing_many(database: Database) -> None:
    for key, token in {"!1": "a", "!2": "b", "!3": "c"}.items():
        await database.run(leases.acquire, key, "w", token, 0, TTL)
    # Token "c" is a good token, but not that of "!2".
    renewed = await database.run(leases.renew_all, {"!1": "a", "!2": "c", "!3": "c", "!4": "d"}, 50)
    assert renewed == {"!1", "!3"}
    holders = await database.run(leases.holders, ["!1", "!2", "!3", "!4"], 50, TTL)
    assert {key: lease.last_renewed_ts for key, lease in holders.items()} == {
        "!1": 50,
        "!2": 0,
        "!3": 50,
    }


async def test_a_transaction_without_the_lease_does_not_commit(database: Database) -> None:
    await database.run(leases.acquire, KEY, "w", "a", 0, TTL)
    await database.run(leases.assert_held, KEY, "a")
    with pytest.raises(LeaseLost, match="another instance"):
        await database.run(leases.assert_held, KEY, "b")
    with pytest.raises(LeaseLost):
        await database.run(leases.assert_held, "!other", "a")


async def test_takeover_waits_for_a_transaction_that_has_checked(
    postgresql_database: Database,
) -> None:
    checked, finish = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        leases.assert_held(connection, KEY, "a")
        checked.set()
        finish.wait(10)

    await postgresql_database.run(leases.acquire, KEY, "w", "a", 0, TTL)
    batch = asyncio.create_task(postgresql_database.run(write))
    await asyncio.to_thread(checked.wait, 10)
    takeover = asyncio.create_task(
        postgresql_database.run(leases.acquire, KEY, "w", "b", 10 * TTL, TTL)
    )
    done, _ = await asyncio.wait({takeover}, timeout=0.3)
    assert not done
    finish.set()
    await batch
    assert await takeover


async def test_what_a_dead_instance_left_on_a_room_that_is_done(database: Database) -> None:
    def make_partial(connection: Connection) -> None:
        connection.execute(insert(rooms).values(room_id="!partial:example.com"))
        connection.execute(
            insert(partial_state_rooms).values(
                room_id="!partial:example.com", device_lists_stream_id=0, joined_via="example.com"
            )
        )

    await database.run(make_partial)
    for key, now in {"!partial:example.com": 0, "!done:example.com": 0, "!fresh:a": 500}.items():
        await database.run(leases.acquire, key, "w", "token", now, TTL)
    assert await database.run(leases.forget_expired, 1000, TTL) == 0
    assert await database.run(leases.forget_expired, 1001, TTL) == 1
    left = await database.run(
        leases.holders, ["!partial:example.com", "!done:example.com", "!fresh:a"], 0, TTL
    )
    # A partially stated room's is taken over, not forgotten: its holder may only have been slow.
    assert left.keys() == {"!partial:example.com", "!fresh:a"}
