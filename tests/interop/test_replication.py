"""Replication with a real Synapse: one Redis channel, one PostgreSQL database, both ways."""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from sqlalchemy import Connection, delete, insert, text

from storage.database import Database
from storage.schema import (
    partial_state_rooms,
    un_partial_stated_event_stream,
    un_partial_stated_room_stream,
)
from storage.streams import write_cache_invalidations
from tests.integration.resync.replication.followers import Follower, over_redis
from tests.integration.resync.replication.netcat import Worker, running
from tests.interop.loopback import free_port
from tests.interop.synapse_server import SynapseServer, User

REDIS = os.environ.get("RESYNC_TEST_REDIS", "redis://127.0.0.1:6379/0")
PATIENCE_S = 60.0
PARTIAL_STATE_CACHES = ("is_partial_state_room", "is_partial_state_event", "get_partial_rooms")


@pytest.fixture
def joined_synapse(tmp_path: Path, postgresql_url: str) -> Iterator[SynapseServer]:
    """A Synapse that replicates over Redis, as one with workers does."""
    redis = urlsplit(REDIS)
    # Not a listener of the type "metrics": that one counts in a thread while the counts change.
    metrics = {
        "type": "http",
        "port": free_port(),
        "bind_addresses": ["127.0.0.1"],
        "resources": [{"names": ["metrics"]}],
    }
    with SynapseServer(
        tmp_path,
        postgresql_url=postgresql_url,
        extra_config={
            "redis": {"enabled": True, "host": redis.hostname, "port": redis.port or 6379},
            "enable_metrics": True,
        },
        extra_listeners=[metrics],
    ) as server:
        yield server


@asynccontextmanager
async def database_of(synapse: SynapseServer) -> AsyncIterator[Database]:
    database = Database(synapse.config["database"]["args"]["dsn"])
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def beside(synapse: SynapseServer) -> AsyncIterator[Worker]:
    """Our replication on the database and the channel of a Synapse."""
    async with (
        database_of(synapse) as database,
        running(database, server_name=synapse.server_name, redis_url=REDIS) as worker,
    ):
        yield worker


async def received_rows(synapse: SynapseServer) -> dict[str, int]:
    """How many rows of each stream Synapse says it has received."""
    (port,) = (
        listener["port"]
        for listener in synapse.config["listeners"]
        if listener["resources"][0]["names"] == ["metrics"]
    )
    url = f"http://127.0.0.1:{port}/_synapse/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
        page = answer.read().decode()
    found = re.findall(
        r"^synapse_replication_tcp_protocol_inbound_rdata_count(?:_total)?"
        r'\{[^}]*stream_name="(\w+)"[^}]*\} ([0-9.e+]+)$',
        page,
        re.MULTILINE,
    )
    return {stream: int(float(count)) for stream, count in found}


async def eventually(question: Any, answer: Any) -> None:
    """Wait until `question` is answered so; a failure shows the last answer."""
    for _ in range(int(PATIENCE_S / 0.05)):
        found = await question()
        if found == answer:
            return
        await asyncio.sleep(0.05)
    assert found == answer


def complaints(synapse: SynapseServer) -> list[str]:
    return [
        line
        for line in synapse.log_lines()
        if re.search(r" (ERROR|CRITICAL) |Traceback|Failed to parse|Discarding RDATA", line)
    ]


async def write_un_partial_stated(worker: Worker, room_id: str, event_id: str) -> None:
    """What a resync writes at its end: invalidations, the event's row, the room's row."""
    generators, database = worker.generators, worker.database
    async with (
        generators["caches"].reserve(3) as cache_ids,
        generators["un_partial_stated_event"].reserve() as event_ids,
        generators["un_partial_stated_room"].reserve() as room_ids,
    ):

        def write(connection: Connection) -> None:
            connection.execute(
                delete(partial_state_rooms).where(partial_state_rooms.c.room_id == room_id)
            )
            write_cache_invalidations(
                connection,
                cache_ids,
                worker.instance_name,
                [
                    ("is_partial_state_room", [room_id]),
                    ("is_partial_state_event", [event_id]),
                    ("get_partial_rooms", None),
                ],
                1,
            )
            writer = {"instance_name": worker.instance_name}
            connection.execute(
                insert(un_partial_stated_event_stream).values(
                    stream_id=event_ids[0],
                    event_id=event_id,
                    rejection_status_changed=False,
                    **writer,
                )
            )
            connection.execute(
                insert(un_partial_stated_room_stream).values(
                    stream_id=room_ids[0], room_id=room_id, **writer
                )
            )

        await database.run(write)
    await worker.server.notify()


async def test_synapse_takes_our_rows(joined_synapse: SynapseServer) -> None:
    synapse = joined_synapse
    user = await asyncio.to_thread(synapse.register, "watcher")
    room_id = await asyncio.to_thread(user.create_room, "11")
    event_id = await asyncio.to_thread(user.send_message, room_id, "hello")
    async with beside(synapse) as worker:

        def make_partial(connection: Connection) -> None:
            connection.execute(insert(partial_state_rooms).values(room_id=room_id))

        await worker.database.run(make_partial)
        await worker.invalidate("is_partial_state_room", keys=[room_id])
        await eventually(lambda: received_rows(synapse), {"caches": 1})
        # In partial state the member list is not known: the request waits.
        path = f"/rooms/{quote(room_id)}/members"
        waiting = asyncio.create_task(asyncio.to_thread(user.request, "GET", path))
        await asyncio.wait([waiting], timeout=2)
        assert not waiting.done()

        await write_un_partial_stated(worker, room_id, event_id)
        async with asyncio.timeout(PATIENCE_S):
            members = await waiting
        assert [event["state_key"] for event in members["chunk"]] == [user.user_id]
        await eventually(
            lambda: received_rows(synapse),
            {"caches": 4, "un_partial_stated_event": 1, "un_partial_stated_room": 1},
        )
    assert complaints(synapse) == []


async def test_synapse_takes_our_rows_after_each_of_its_restarts(
    joined_synapse: SynapseServer,
) -> None:
    synapse = joined_synapse
    user = await asyncio.to_thread(synapse.register, "watcher")
    rooms = [await asyncio.to_thread(user.create_room, "11") for _ in range(3)]
    events = [await asyncio.to_thread(user.send_message, room_id, "hello") for room_id in rooms]
    async with beside(synapse) as worker:
        for number in range(3):
            await asyncio.to_thread(synapse.stop)
            await worker.invalidate("away")
            await asyncio.to_thread(synapse.start)
            await write_un_partial_stated(worker, rooms[number], events[number])
            await eventually(
                lambda: received_rows(synapse),
                {"caches": 3, "un_partial_stated_event": 1, "un_partial_stated_room": 1},
            )
    assert complaints(synapse) == []


async def test_we_follow_synapse_through_restarts_of_either_side(
    joined_synapse: SynapseServer, synapse: SynapseServer, creator: User
) -> None:
    resident, joining = synapse, joined_synapse
    user = await asyncio.to_thread(joining.register, "watcher")
    room_id = await asyncio.to_thread(user.create_room, "11")
    remote_room_id = await asyncio.to_thread(creator.create_room, "11")
    async with database_of(joining) as database:
        follower = Follower(database, streams={"events", "caches", "un_partial_stated_room"})

        def send(*bodies: str) -> list[str]:
            return [user.send_message(room_id, body) for body in bodies]

        async def expect(event_ids: list[str]) -> None:
            async with asyncio.timeout(PATIENCE_S):
                await follower.until(lambda: set(event_ids) <= set(events_of(follower)))

        async with over_redis(follower, REDIS, server_name=joining.server_name):
            await follower.connected("events", "master")
            begin = follower.reader.positions["events", "master"]
            await expect(await asyncio.to_thread(send, "both are there"))
        missed = await asyncio.to_thread(send, *(f"we are away {n}" for n in range(20)))
        async with over_redis(follower, REDIS, server_name=joining.server_name):
            await expect(missed)
            await asyncio.to_thread(joining.stop)
            await asyncio.to_thread(joining.start)
            await expect(await asyncio.to_thread(send, "it was away"))
            path = f"/join/{quote(remote_room_id)}?server_name={quote(resident.server_name)}"
            await asyncio.to_thread(user.request, "POST", path, {})
            row = ("un_partial_stated_room", "master", [remote_room_id])
            async with asyncio.timeout(PATIENCE_S):
                await follower.until(
                    lambda: row in [(name, writer, row) for name, writer, _, row in follower.rows]
                )
            await expect(await asyncio.to_thread(send, "the end"))
            last = max(follower.ids("master", "events"))
            expected = await database.read(stored_events, begin, last)
        received = [
            (stream_id, row[1][0])
            for name, _, stream_id, row in follower.rows
            if name == "events" and row[0] == "ev" and stream_id <= last
        ]
        assert received == expected
        assert follower.ids("master", "caches")
        for stream in ("events", "caches", "un_partial_stated_room"):
            ids = follower.ids("master", stream)
            assert ids == sorted(ids)


def events_of(follower: Follower) -> list[str]:
    return [row[1][0] for name, _, _, row in follower.rows if name == "events" and row[0] == "ev"]


def stored_events(connection: Connection, after: int, upto: int) -> list[tuple[int, str]]:
    """Ids and events as Synapse has written them, by a query of the test's own."""
    found = connection.execute(
        text(
            "SELECT stream_ordering, event_id FROM events"
            " WHERE stream_ordering > :after AND stream_ordering <= :upto"
            " UNION ALL"
            " SELECT event_stream_ordering, event_id FROM ex_outlier_stream"
            " WHERE event_stream_ordering > :after AND event_stream_ordering <= :upto"
            " ORDER BY 1"
        ),
        {"after": after, "upto": upto},
    )
    return [(row[0], row[1]) for row in found]
