"""Following a real server over a real socket, through everything that can happen to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from resync.replication.metrics import ReplicationMetrics
from resync.replication.reader import Reader
from resync.replication.tcp_client import TcpClient, WrongServer
from storage.database import Database
from storage.streams import write_cache_invalidations
from tests.integration.resync.replication.followers import Follower, over_tcp
from tests.integration.resync.replication.netcat import PATIENCE_S, Worker, now_ms, running


async def test_rows_arrive_in_order_and_once(worker: Worker) -> None:
    follower = Follower(worker.database)
    async with over_tcp(follower, worker.port):
        await follower.connected()
        written = [
            stream_id
            for number in range(30)
            for stream_id in await worker.invalidate(*[f"f{number}"] * (1 + number % 3))
        ]
        await follower.until(lambda: len(follower.rows) >= len(written))
    assert follower.ids() == written
    assert worker.sample("resync_replication_rows_announced_total", stream="caches") == len(written)
    received = follower.registry.get_sample_value(
        "resync_replication_rows_received_total", {"stream": "caches"}
    )
    assert received == len(written)


async def test_a_reader_that_was_away_catches_up_from_the_tables(database: Database) -> None:
    follower = Follower(database)
    written = []
    async with running(database) as worker:
        port = worker.port
        async with over_tcp(follower, port):
            await follower.connected()
            written += await worker.invalidate("before")
            await follower.until(lambda: bool(follower.rows))
        # Nobody is connected, then nobody is there at all.
        written += await worker.invalidate("away", "away")
    async with over_tcp(follower, port), running(database, port=port or 0) as worker:
        await follower.connected()
        written += await worker.invalidate("back")
        await follower.until(lambda: len(follower.rows) >= 4)
    assert follower.ids() == written
    assert follower.functions() == ["before", "away", "away", "back"]


async def test_more_rows_than_one_batch_are_fetched(sqlite_database: Database) -> None:
    async with running(sqlite_database) as worker:
        follower = Follower(sqlite_database, positions={("caches", "resync1"): 1})
        written = await worker.invalidate(*["f"] * 2500)
        async with worker.generators["caches"].reserve() as ids:  # nobody is told of this one
            await sqlite_database.run(
                write_cache_invalidations, ids, "resync1", [("last", None)], 1
            )
        async with over_tcp(follower, worker.port):
            await follower.until(lambda: len(follower.rows) == 2501)
    assert follower.ids() == [*written, *ids]


async def test_the_listener_of_another_homeserver_is_refused(sqlite_database: Database) -> None:
    metrics = ReplicationMetrics(CollectorRegistry())

    async def nothing(rows: object) -> None:
        pytest.fail(f"rows of another server were taken: {rows}")

    async with running(sqlite_database) as worker:
        client = TcpClient(
            ("127.0.0.1", worker.port or 0),
            server_name="example.com",
            client_name="lost",
            reader=Reader(nothing, metrics),
            metrics=metrics,
            now_ms=now_ms,
        )
        with pytest.raises(WrongServer, match="belongs to 'localhost:8823', not to"):
            await client.run()


@asynccontextmanager
async def hostile_server(*scripts: bytes) -> AsyncIterator[tuple[int, asyncio.Queue[bytes]]]:
    """Sends one script per connection, then reads until the client leaves."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    left = list(scripts)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if left:
                writer.write(left.pop(0))
            heard.put_nowait(await reader.read(-1))
        except ConnectionError:
            heard.put_nowait(b"")
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()


GREETING = b"SERVER localhost:8823\nPING 1\n"
GOOD = GREETING + b'POSITION caches resync1 1 1\nRDATA caches resync1 2 ["ok",null,1]\n'


@pytest.mark.parametrize(
    ("script", "reason", "told"),
    [
        (GREETING + b"RDATA caches resync1 x []\n", "broken line", "ERROR broken line: RDATA:"),
        (GREETING + b"RDATA caches resync1 2 [\n", "broken line", "ERROR broken line: RDATA:"),
        (GREETING + b"PING \xff\n", "broken line", "ERROR broken line: not UTF-8"),
        (GREETING + b"NAME me\n", "invalid command", "ERROR invalid command: NAME"),
        (GREETING + b"x" * 5_000_000, "line too long", ""),
        (b"PING 1\n", "no SERVER at the beginning", "ERROR no SERVER at the beginning"),
        (GREETING + b"ERROR no\n", "the server reports an error", ""),
        (GREETING, "ping timeout", "ERROR ping timeout"),
    ],
)
async def test_a_server_that_misbehaves_is_left_and_tried_again(
    script: bytes, reason: str, told: str
) -> None:
    follower = Follower(None)
    async with (
        hostile_server(script, GOOD) as (port, heard),
        over_tcp(follower, port, ping_interval_s=0.1, timeout_s=0.5),
    ):
        await follower.until(lambda: bool(follower.rows))
        async with asyncio.timeout(PATIENCE_S):
            lines = (await heard.get()).decode().splitlines()
    if told:
        assert lines[0] == "NAME follower"
        assert lines[1].startswith("PING ")
        assert lines[2] == "REPLICATE"
        assert lines[-1].startswith(told)
    assert follower.functions() == ["ok"]
    assert follower.registry.get_sample_value(
        "resync_replication_disconnects_total", {"transport": "tcp-client", "reason": reason}
    )


async def test_commands_we_do_not_know_are_skipped() -> None:
    follower = Follower(None)
    script = GREETING + b"FANCY_NEW_COMMAND {}\nNEW_ACTIVE_TASK x\n" + GOOD[len(GREETING) :]
    async with hostile_server(script) as (port, _), over_tcp(follower, port):
        await follower.until(lambda: bool(follower.rows))
    assert follower.functions() == ["ok"]
