"""Replication over a real Redis, which a proxy can make disappear."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import pytest
from redis.asyncio import Redis
from sqlalchemy import Connection, update

from storage.database import Database
from storage.schema import worker_locks
from storage.streams import write_cache_invalidations
from tests.integration.resync.replication.followers import Follower, over_redis, over_tcp
from tests.integration.resync.replication.netcat import PATIENCE_S, running

REDIS = os.environ.get("RESYNC_TEST_REDIS", "redis://127.0.0.1:6379/0")


class Proxy:
    """Stands between us and Redis; `cut` drops all connections, `refuse` takes no new ones."""

    def __init__(self) -> None:
        parts = urlsplit(REDIS)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._parts = parts
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.connections = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._parts._replace(netloc=f"127.0.0.1:{port}"))

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        self._open.discard(sink)
        sink.transport.abort()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    started = Proxy()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
def server_name() -> str:
    """A channel of our own: all databases of a Redis share them."""
    return f"{uuid.uuid4().hex}.example.com"


class Eavesdropper:
    """Hears every message on the channel, and can publish on it."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.redis = Redis.from_url(REDIS)
        self._pubsub = self.redis.pubsub(ignore_subscribe_messages=True)

    async def __aenter__(self) -> Eavesdropper:
        await self._pubsub.subscribe(self.channel)
        await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pubsub.aclose()
        await self.redis.aclose()

    async def publish(self, *lines: str | bytes) -> None:
        for line in lines:
            await self.redis.publish(self.channel, line)

    async def until(self, beginning: str) -> list[str]:
        """All messages up to and with the first that begins so."""
        heard: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while not heard or not heard[-1].startswith(beginning):
                message = await self._pubsub.get_message(timeout=1)
                if message is not None:
                    heard.append(message["data"].decode())
        return heard


async def test_what_a_worker_says_on_the_channel(database: Database, server_name: str) -> None:
    async with (
        Eavesdropper(server_name) as ear,
        running(database, server_name=server_name, redis_url=REDIS) as worker,
    ):
        positions = [
            f"POSITION {stream} resync1 1 1"
            for stream in ("caches", "un_partial_stated_event", "un_partial_stated_room")
        ]
        heard = await ear.until("POSITION un_partial_stated_room")
        assert heard == ["REPLICATE", *positions]
        # It hears its own REPLICATE, as Synapse does.
        await ear.until("POSITION un_partial_stated_room")
        await ear.publish("REPLICATE ")
        assert (await ear.until("POSITION un_partial_stated_room"))[-3:] == positions
        await worker.invalidate("a", "b")
        assert await ear.until("RDATA caches resync1 3") == [
            'RDATA caches resync1 2 ["a",["key"],5]',
            'RDATA caches resync1 3 ["b",["key"],5]',
        ]


async def test_two_workers_hear_each_other(postgresql_database: Database, server_name: str) -> None:
    options = {"server_name": server_name, "redis_url": REDIS}
    follower = Follower(postgresql_database)
    async with (
        running(postgresql_database, "resync1", **options) as one,
        running(postgresql_database, "resync2", **options) as two,
        over_redis(follower, REDIS, server_name=server_name),
    ):
        await follower.connected(writer="resync1")
        await follower.connected(writer="resync2")
        ours, theirs = [], []
        for number in range(20):
            ours += await one.invalidate(f"one{number}")
            theirs += await two.invalidate(f"two{number}")
        await follower.until(lambda: len(follower.rows) >= 40)
    assert follower.ids("resync1") == ours
    assert follower.ids("resync2") == theirs


async def test_nothing_is_lost_when_redis_goes_away(
    database: Database, server_name: str, proxy: Proxy
) -> None:
    follower = Follower(database)
    written = []
    async with (
        running(database, server_name=server_name, redis_url=proxy.url) as worker,
        over_redis(follower, proxy.url, server_name=server_name),
    ):
        await follower.connected()
        for number in range(6):
            written += await worker.invalidate(f"before{number}")
            await follower.until_count(len(written))
            proxy.refusing = True
            proxy.cut()
            written += await worker.invalidate(f"away{number}", f"away{number}")
            proxy.refusing = False
        await follower.until_count(len(written))
    assert follower.ids() == written
    assert proxy.connections > 6


async def test_rows_of_a_worker_that_died_are_announced_by_another(
    postgresql_database: Database, server_name: str
) -> None:
    """It committed and died before it told anybody, and does not come back."""
    database = postgresql_database
    options = {"server_name": server_name, "redis_url": REDIS}
    follower = Follower(database)
    async with (
        running(database, "survivor", **options),
        over_redis(follower, REDIS, server_name=server_name),
        running(database, "victim", **options) as victim,
    ):
        await victim.invalidate("told")
        await follower.until_count(1)
        publisher = victim.server.publisher
        publisher._task.cancel()
        async with victim.generators["caches"].reserve() as ids:
            rows = [("untold", None)]
            await database.run(write_cache_invalidations, ids, "victim", rows, 5)
        await victim.server.redis.close()
        await victim.server.tcp.close()
        # Time passes without a sign of it.
        await database.run(_age, "victim")
        await follower.until_count(2)
        assert follower.functions("victim") == ["told", "untold"]


def _age(connection: Connection, instance_name: str) -> None:
    connection.execute(
        update(worker_locks)
        .where(worker_locks.c.lock_key == instance_name)
        .values(last_renewed_ts=0)
    )


async def test_messages_that_cannot_be_read_are_skipped(
    sqlite_database: Database, server_name: str
) -> None:
    follower = Follower(sqlite_database)
    async with (
        Eavesdropper(server_name) as ear,
        over_redis(follower, REDIS, server_name=server_name),
    ):
        await ear.until("REPLICATE")
        await ear.publish(
            "POSITION caches master 1 1",
            "UNKNOWN x",
            b"\xff\xfe",
            "",
            "RDATA caches master five []",
            "RDATA caches master 5 [" + "[" * 100_000,
            b"x" * 5_000_000,
            'RDATA caches master 5 ["fine",null,1]',
        )
        await follower.until(lambda: bool(follower.rows))
    assert follower.functions("master") == ["fine"]
    counted = {
        command: follower.registry.get_sample_value(
            "resync_replication_commands_received_total",
            {"transport": "redis", "command": command},
        )
        for command in ("unknown", "broken", "POSITION", "RDATA")
    }
    assert counted == {"unknown": 1, "broken": 4, "POSITION": 1, "RDATA": 1}


async def test_a_redis_that_is_not_there_stops_nobody(
    sqlite_database: Database, server_name: str
) -> None:
    follower = Follower(sqlite_database)
    url = "redis://127.0.0.1:1/0"
    async with (
        running(sqlite_database, server_name=server_name, redis_url=url) as worker,
        over_tcp(follower, worker.port, server_name=server_name),
    ):
        await follower.connected()
        await worker.invalidate("still here")
        await follower.until_count(1)
