"""The TCP side as a person with netcat and a hostile client see it."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, insert

from storage.database import Database
from storage.rooms import insert_room
from storage.schema import un_partial_stated_room_stream
from storage.streams import write_cache_invalidations
from tests.integration.resync.replication.netcat import Worker, connected, running


def blank_times(line: str | None) -> str | None:
    return "PING <ms>" if line and line.startswith("PING ") else line


async def test_a_session_as_in_the_documentation(database: Database) -> None:
    async with running(database) as worker, connected(worker.port) as netcat:
        seen = [blank_times(line) for line in await netcat.lines(2)]
        await netcat.type("NAME resync.watcher", "PING 1490197665618", "REPLICATE")
        seen += await netcat.lines(3)
        await worker.invalidate("get_user_by_id", keys=["@01register-user:localhost:8823"])
        seen.append(await netcat.line())
        await worker.invalidate("get_partial_rooms", keys=None)
        seen.append(await netcat.line())
        await netcat.type("PING 1490197675618")
        await worker.server.close()
        seen += await netcat.rest()
    assert seen == [
        "SERVER localhost:8823",
        "PING <ms>",
        "POSITION caches resync1 1 1",
        "POSITION un_partial_stated_event resync1 1 1",
        "POSITION un_partial_stated_room resync1 1 1",
        'RDATA caches resync1 2 ["get_user_by_id",["@01register-user:localhost:8823"],5]',
        'RDATA caches resync1 3 ["get_partial_rooms",null,5]',
        "ERROR server stopping",
    ]


async def test_a_person_who_only_watches_is_not_timed_out(worker: Worker) -> None:
    worker.server.tcp.ping_interval_s = worker.server.tcp.timeout_s = 0.05
    async with connected(worker.port) as netcat:
        netcat.close_input()
        assert await netcat.line() == "SERVER localhost:8823"
        for _ in range(5):
            assert (await netcat.line() or "").startswith("PING ")
        await worker.invalidate("f")
        assert await netcat.until("RDATA") == 'RDATA caches resync1 2 ["f",["key"],5]'


async def test_a_client_that_pings_must_go_on(worker: Worker) -> None:
    worker.server.tcp.ping_interval_s, worker.server.tcp.timeout_s = 0.05, 0.3
    async with connected(worker.port) as netcat:
        await netcat.type("PING 1")
        assert (await netcat.rest())[-1] == "ERROR ping timeout"
    assert worker.sample(
        "resync_replication_disconnects_total", transport="tcp", reason="ping timeout"
    )


async def test_rows_of_before_the_first_reader_are_kept_for_it(database: Database) -> None:
    async with running(database) as worker:
        await worker.invalidate("early")
    async with running(database) as worker:
        await worker.invalidate("later", "latest")
        async with connected(worker.port) as netcat:
            await netcat.type("REPLICATE")
            rows = [await netcat.until("RDATA") for _ in range(3)]
            assert [row.split(" ")[4] for row in rows] == [
                f'["{name}",["key"],5]' for name in ("early", "later", "latest")
            ]
        async with connected(worker.port) as second:
            await second.type("REPLICATE")
            assert await second.until("POSITION caches") == "POSITION caches resync1 4 4"


async def test_rows_of_a_killed_worker_are_announced_by_the_next(database: Database) -> None:
    """Committed, and then the process died before it told anybody."""
    async with running(database) as worker, connected(worker.port) as netcat:
        await worker.invalidate("told")
        await netcat.until("RDATA caches resync1 2 ")
        worker.server.publisher._task.cancel()  # it will announce no more
        async with worker.generators["caches"].reserve() as ids:
            await database.run(write_cache_invalidations, ids, "resync1", [("untold", None)], 5)
        async with (
            running(database) as next_worker,
            connected(next_worker.port) as again,
        ):
            # The row before may come once more: the worker died before it noted that it was sent.
            row = await again.until("RDATA caches resync1 3 ")
            assert row == 'RDATA caches resync1 3 ["untold",null,5]'


async def test_rows_of_another_worker_are_announced_too(postgresql_database: Database) -> None:
    async with (
        running(postgresql_database, "resync1") as one,
        running(postgresql_database, "resync2") as two,
        connected(one.port) as netcat,
    ):
        await two.invalidate("a", "b")
        [first] = await one.invalidate("c")
        rows = [await netcat.until("RDATA") for _ in range(3)]
        by_writer = {
            name: [row for row in rows if row.startswith(f"RDATA caches {name} ")]
            for name in ("resync1", "resync2")
        }
        assert by_writer == {
            "resync1": [f'RDATA caches resync1 {first} ["c",["key"],5]'],
            "resync2": [
                'RDATA caches resync2 2 ["a",["key"],5]',
                'RDATA caches resync2 3 ["b",["key"],5]',
            ],
        }


HOSTILE = [
    (b"RDATA caches me 5 []\n", "ERROR invalid command: RDATA"),
    (b"SERVER me\n", "ERROR invalid command: SERVER"),
    (b"USER_SYNC a b\n", "ERROR cannot read that line: USER_SYNC: expected"),
    (b"LOCK_RELEASED [\n", "ERROR cannot read that line: LOCK_RELEASED: broken JSON"),
    (b"LOCK_RELEASED " + b"[" * 60_000 + b"\n", "ERROR cannot read that line: LOCK_RELEASED"),
    (b"NAME \xff\xfe\n", "ERROR cannot read that line: not UTF-8"),
    (b"x" * 100_000_000, "ERROR a line is longer than 65536 bytes"),
    (b"PING\n" * 50_000, "ERROR too many commands"),
    (b"REPLICATE\n" * 50_000, "ERROR too many commands"),
    (b"\x00\x01\n" * 50_000, "ERROR too many commands"),
]


@pytest.mark.parametrize(("data", "answer"), HOSTILE)
async def test_hostile_lines_end_their_own_connection_only(
    sqlite_database: Database, data: bytes, answer: str
) -> None:
    async with (
        running(sqlite_database) as worker,
        connected(worker.port) as bystander,
        connected(worker.port) as hostile,
    ):
        sending = asyncio.create_task(hostile.send(data))
        lines = await hostile.rest()
        assert lines[-1].startswith(answer)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await worker.invalidate("still", "here")
        assert await bystander.until("RDATA") == 'RDATA caches resync1 2 ["still",["key"],5]'


@pytest.mark.parametrize(
    "data",
    [b"HELLO world\n", b"\x00\x01\x02\n", b"GET / HTTP/1.1\r\n\r\n", b"\n\r\n  \n", b"half a li"],
)
async def test_what_is_not_a_command_is_skipped(sqlite_database: Database, data: bytes) -> None:
    async with running(sqlite_database) as worker, connected(worker.port) as netcat:
        await netcat.send(data)
        if not data.endswith(b"\n"):
            await netcat.send(b"ne\n")
        await netcat.type("REPLICATE")
        assert await netcat.until("POSITION caches") == "POSITION caches resync1 1 1"


async def test_invalidations_come_before_the_rows_they_were_written_with(
    database: Database,
) -> None:
    await database.run(insert_room, "!room:example.com", "11", None)
    async with running(database) as worker, connected(worker.port) as netcat:
        caches = worker.generators["caches"]
        rooms = worker.generators["un_partial_stated_room"]

        def write(connection: Connection, cache_ids: list[int], room_id: int) -> None:
            invalidation = ("get_partial_rooms", None)
            write_cache_invalidations(connection, cache_ids, "resync1", [invalidation], 5)
            connection.execute(
                insert(un_partial_stated_room_stream).values(
                    stream_id=room_id, instance_name="resync1", room_id="!room:example.com"
                )
            )

        async with caches.reserve() as unrelated:
            async with caches.reserve() as cache_ids, rooms.reserve() as room_ids:
                await database.run(write, cache_ids, room_ids[0])
            # Enough rounds to announce the room, if nothing held it back.
            for _ in range(5):
                await worker.server.notify()
                await netcat.type("REPLICATE")
                await netcat.until("POSITION un_partial_stated_room")
        await worker.server.notify()
        rows = [await netcat.until("RDATA") for _ in range(2)]
    assert unrelated < cache_ids
    assert rows == [
        'RDATA caches resync1 3 ["get_partial_rooms",null,5]',
        'RDATA un_partial_stated_room resync1 2 ["!room:example.com"]',
    ]
