"""Stream ids, positions and rows on real databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from sqlalchemy import Connection, insert, text

from storage.database import Database
from storage.schema import cache_invalidation_stream_by_instance as caches
from storage.stream_positions import (
    WRITER_TTL_MS,
    claim_writer,
    load_announced,
    load_positions,
    prepare_ids,
    renew_writer,
    retire_writer,
    store_announced,
    store_positions,
    survey,
)
from storage.streams import (
    CACHES,
    UN_PARTIAL_STATED_ROOM,
    SequenceWentBack,
    StreamIdGenerator,
    load_rows,
    write_cache_invalidations,
)


def write(connection: Connection, ids: list[int], writer: str = "w1") -> None:
    write_cache_invalidations(connection, ids, writer, [(f"f{i}", ["k"]) for i in ids], 7)


async def test_ids_start_at_two_and_ascend(database: Database) -> None:
    generator = await StreamIdGenerator.open(database, CACHES, "w1")
    assert generator.position == 1
    async with generator.reserve() as first:
        assert first == [2]
        async with generator.reserve(3) as more:
            assert more == [3, 4, 5]
            assert generator.position == 1
        assert generator.position == 1
    assert generator.position == 5


async def test_a_rollback_completes_its_ids(database: Database) -> None:
    generator = await StreamIdGenerator.open(database, CACHES, "w1")

    def fail(connection: Connection, ids: list[int]) -> None:
        write(connection, ids)
        raise LookupError

    with pytest.raises(LookupError):
        async with generator.reserve(2) as ids:
            await database.run(fail, ids)
    assert generator.position == 3
    assert (await database.read(load_rows, CACHES, "w1", 1, 3, 10)).rows == []


async def test_an_id_lost_in_a_crash_holds_nobody_up(database: Database) -> None:
    before = await StreamIdGenerator.open(database, CACHES, "w1")
    async with before.reserve(2) as committed:
        await database.run(write, committed)
    lost = before.reserve(3)
    await lost.__aenter__()  # and never left: its process is gone

    after = await StreamIdGenerator.open(database, CACHES, "w1")
    assert after.position >= 6
    async with after.reserve() as ids:
        assert ids[0] > 6
        await database.run(write, ids)
    rows = (await database.read(load_rows, CACHES, "w1", 1, after.position, 10)).rows
    assert [row.stream_id for row in rows] == [*committed, *ids]


async def test_writers_never_share_an_id(database: Database) -> None:
    writers = [await StreamIdGenerator.open(database, CACHES, f"w{n}") for n in range(4)]

    async def work(generator: StreamIdGenerator) -> None:
        for count in range(1, 8):
            async with generator.reserve(count) as ids:
                await database.run(write, ids, generator.instance_name)

    await asyncio.gather(*(work(generator) for generator in writers for _ in range(2)))
    for generator in writers:
        assert generator.tracker.idle
        rows = (
            await database.read(load_rows, CACHES, generator.instance_name, 1, 10**6, 1000)
        ).rows
        assert len({row.stream_id for row in rows}) == 2 * 28
        assert generator.position >= rows[-1].stream_id


async def test_ids_begin_behind_the_table(database: Database) -> None:
    """After a restore the table can be ahead of its sequence."""
    await database.run(write, [40, 41], "someone")
    generator = await StreamIdGenerator.open(database, CACHES, "w1")
    assert generator.position == 41
    async with generator.reserve() as ids:
        assert ids == [42]


async def test_a_sequence_that_went_back_is_an_error(postgresql_database: Database) -> None:
    generator = await StreamIdGenerator.open(postgresql_database, CACHES, "w1")
    async with generator.reserve(5):
        pass
    await postgresql_database.run(
        lambda connection: connection.execute(
            text("SELECT setval('cache_invalidation_stream_seq', 1)")
        ).scalar()
    )
    with pytest.raises(SequenceWentBack, match="cache_invalidation_stream_seq"):
        async with generator.reserve():
            pytest.fail("the id was handed out")
    assert generator.tracker.idle


async def test_a_fresh_sequence_skips_one(postgresql_database: Database) -> None:
    """Synapse's first id is 2; a sequence that was only created would begin at 1."""

    def recreate(connection: Connection) -> int:
        connection.execute(text("DROP SEQUENCE un_partial_stated_room_stream_sequence"))
        connection.execute(text("CREATE SEQUENCE un_partial_stated_room_stream_sequence"))
        return prepare_ids(connection, UN_PARTIAL_STATED_ROOM)

    assert await postgresql_database.run(recreate) == 1
    generator = await StreamIdGenerator.open(postgresql_database, UN_PARTIAL_STATED_ROOM, "w1")
    async with generator.reserve() as ids:
        assert ids == [2]


async def test_two_processes_on_one_sqlite_file_never_share_an_id(sqlite_url: str) -> None:
    first, second = Database(sqlite_url), Database(sqlite_url)
    try:
        ours = await StreamIdGenerator.open(first, CACHES, "worker")
        theirs = await StreamIdGenerator.open(second, CACHES, "command")
        taken: list[int] = []
        for _ in range(3):
            async with ours.reserve(2) as a, theirs.reserve(3) as b:
                taken += [*a, *b]
        assert taken == list(range(2, 17))
    finally:
        await first.close()
        await second.close()


async def test_rows_come_in_bounded_batches_and_facts_stay_whole(database: Database) -> None:
    def fill(connection: Connection) -> None:
        connection.execute(text("DROP INDEX cache_invalidation_stream_by_instance_id"))
        ids = [2, 3, 3, 3, 4, 7, 7]
        connection.execute(
            insert(caches),
            [
                {"stream_id": i, "instance_name": "w1", "cache_func": f"f{n}", "keys": ["k"]}
                for n, i in enumerate(ids)
            ]
            + [{"stream_id": 5, "instance_name": "w2", "cache_func": "other", "keys": ["k"]}],
        )

    await database.run(fill)
    after, batches = 1, []
    while True:
        batch = await database.read(load_rows, CACHES, "w1", after, 9, 2)
        batches.append(([row.stream_id for row in batch.rows], batch.upto, batch.limited))
        after = batch.upto
        if not batch.limited:
            break
    assert batches == [
        ([2], 2, True),
        ([3, 3, 3], 3, True),
        ([4], 4, True),
        ([7, 7], 9, False),
    ]


async def test_invalidations_are_read_as_they_were_written(database: Database) -> None:
    async def nothing_more_than(ids: list[int]) -> None:
        await database.run(
            write_cache_invalidations, ids, "w1", [("by_key", ["a", "b"]), ("all", None)], 99
        )

    await nothing_more_than([2, 3])
    rows = (await database.read(load_rows, CACHES, "w1", 1, 9, 10)).rows
    assert rows == [(2, ("by_key", ["a", "b"], 99)), (3, ("all", None, 99))]
    with pytest.raises(ValueError, match="2 invalidations"):
        await nothing_more_than([4])


async def test_stored_positions_never_go_back(database: Database) -> None:
    await database.run(store_positions, CACHES, {"w1": 9, "w2": 4})
    await database.run(store_positions, CACHES, {"w1": 5, "w2": 6})
    assert await database.read(load_positions, CACHES) == {"w1": 9, "w2": 6}
    assert await database.read(load_announced, CACHES, "w1") is None
    await database.run(store_announced, CACHES, "w1", 8)
    assert await database.read(load_announced, CACHES, "w1") == 8
    assert await database.read(load_positions, CACHES) == {"w1": 9, "w2": 6}


async def test_a_writer_that_ended_without_a_word_is_complete(database: Database) -> None:
    await database.run(store_positions, CACHES, {"dead": 2, "slow": 2, "gone": 3})
    await database.run(claim_writer, "dead", "token", 0)
    await database.run(claim_writer, "slow", "token", 0)
    await database.run(claim_writer, "gone", "token", 0)
    await database.run(retire_writer, "gone", "token")
    await database.run(write, [8], "dead")
    now = WRITER_TTL_MS + 1
    assert await database.run(renew_writer, "slow", "token", now - 10)
    assert not await database.run(renew_writer, "slow", "another process", now)
    [found] = await database.read(survey, [CACHES], "us", now)
    assert found.allocated == 8
    assert found.positions == {"dead": 8, "slow": 2, "gone": 3}
    assert found.dead == {"dead"}


CRASHING_WRITER = """
import asyncio, sys
from storage.database import Database
from storage.streams import CACHES, StreamIdGenerator, write_cache_invalidations

async def main():
    database = Database(sys.argv[1])
    generator = await StreamIdGenerator.open(database, CACHES, sys.argv[2])
    async def work(count):
        while True:
            async with generator.reserve(count) as ids:
                rows = [("f", [str(i)]) for i in ids]
                await database.run(write_cache_invalidations, ids, sys.argv[2], rows, 1)
                print(ids[-1], flush=True)
    await asyncio.gather(*(work(count) for count in (1, 2, 3)))

asyncio.run(main())
"""


@pytest.mark.parametrize("writers", [["w1", "w2"]])
async def test_killed_writers_hold_nobody_up(database_url: str, writers: list[str]) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CRASHING_WRITER, database_url, writer, stdout=subprocess.PIPE
        )
        for writer in writers
    ]
    reported = []
    for process in processes:
        assert process.stdout is not None
        reported += [int(await process.stdout.readline()) for _ in range(20)]
        process.kill()
        await process.wait()
    database = Database(database_url)
    try:
        for writer in writers:
            generator = await StreamIdGenerator.open(database, CACHES, writer)
            assert generator.position >= max(reported)
            async with generator.reserve() as ids:
                await database.run(write, ids, writer)
            assert generator.position >= ids[0] > max(reported)
            rows = (await database.read(load_rows, CACHES, writer, 1, ids[0], 10_000)).rows
            assert rows[-1].stream_id == ids[0]
            assert len({row.stream_id for row in rows}) == len(rows)
    finally:
        await database.close()
