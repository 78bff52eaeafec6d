"""Waiting for a room that this worker finishes, another one does, or nobody."""

from __future__ import annotations

import asyncio

import pytest

from resync.replication import waiter
from storage.database import Database
from storage.partial_state import complete_partial_room, delete_partial_room, insert_partial_room
from storage.rooms import insert_room
from tests.integration.resync.replication.netcat import PATIENCE_S, Worker, running

ROOM = "!room:example.com"


async def partial_room(database: Database, room_id: str = ROOM) -> None:
    await database.run(insert_room, room_id, "11", "@creator:example.com")
    await database.run(
        insert_partial_room, room_id, joined_via="a.example", servers=[], join_event_id=None
    )


async def complete(worker: Worker, room_id: str = ROOM) -> None:
    async with worker.generators["un_partial_stated_room"].reserve() as ids:
        await worker.database.run(complete_partial_room, room_id, ids[0], worker.instance_name)
    await worker.server.notify()


@pytest.fixture(autouse=True)
def only_rows_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter, "RECHECK_INTERVAL_S", 1000)


async def test_a_room_that_is_not_partial_is_not_waited_for(worker: Worker) -> None:
    assert await worker.server.wait_for_room("!unknown:example.com", 0.5)


async def test_the_wait_ends_with_the_row(worker: Worker) -> None:
    await partial_room(worker.database)
    await partial_room(worker.database, "!other:example.com")
    waiting = [
        asyncio.create_task(worker.server.wait_for_room(room_id, PATIENCE_S))
        for room_id in (ROOM, ROOM, "!other:example.com")
    ]
    await asyncio.sleep(0)
    await complete(worker)
    assert await asyncio.gather(*waiting[:2]) == [True, True]
    assert not waiting[2].done()
    await complete(worker, "!other:example.com")
    assert await waiting[2]


async def test_the_wait_ends_with_its_time(worker: Worker) -> None:
    await partial_room(worker.database)
    assert not await worker.server.wait_for_room(ROOM, 0.05)
    assert not await worker.server.wait_for_room(ROOM, 0)


async def test_a_row_of_another_worker_ends_the_wait(postgresql_database: Database) -> None:
    async with (
        running(postgresql_database, "one") as one,
        running(postgresql_database, "two") as two,
    ):
        await partial_room(postgresql_database)
        waiting = asyncio.create_task(one.server.wait_for_room(ROOM, PATIENCE_S))
        await complete(two)
        assert await waiting


async def test_a_room_that_is_given_up_ends_the_wait(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "RECHECK_INTERVAL_S", 0.05)
    await partial_room(worker.database)
    waiting = asyncio.create_task(worker.server.wait_for_room(ROOM, PATIENCE_S))
    await worker.database.run(delete_partial_room, ROOM)
    assert await waiting
