"""Readers for tests: they keep what they were given, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from resync.replication.metrics import ReplicationMetrics
from resync.replication.reader import Reader, TableRows
from resync.replication.redis import RedisLink
from resync.replication.streams import StreamRows
from resync.replication.tcp_client import TcpClient
from storage.database import Database
from tests.integration.resync.replication.netcat import PATIENCE_S, now_ms


class Follower:
    """Keeps every row it is given, as (stream, writer, id, row)."""

    def __init__(self, database: Database | None, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ReplicationMetrics(self.registry)
        self.rows: list[tuple[str, str, int, Any]] = []
        self._changed = asyncio.Event()
        self.reader = Reader(
            self._on_rows,
            self.metrics,
            source=None if database is None else TableRows(database),
            **options,
        )

    async def _on_rows(self, received: StreamRows) -> None:
        name, writer, rows = received
        self.rows += [(name, writer, token, row) for token, row in rows]
        self._changed.set()

    def ids(self, writer: str = "resync1", stream: str = "caches") -> list[int]:
        return [token for name, by, token, _ in self.rows if (name, by) == (stream, writer)]

    def functions(self, writer: str = "resync1") -> list[str]:
        return [row[0] for name, by, _, row in self.rows if (name, by) == ("caches", writer)]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def until_count(self, count: int) -> None:
        """Wait until so many rows have come."""
        await self.until(lambda: len(self.rows) >= count)

    async def connected(self, stream: str = "caches", writer: str = "resync1") -> None:
        """Wait until the reader knows where a writer stands."""
        async with asyncio.timeout(PATIENCE_S):
            while (stream, writer) not in self.reader._connected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def over_tcp(follower: Follower, port: int | None, **options: Any) -> AsyncIterator[Follower]:
    assert port is not None
    client = TcpClient(
        ("127.0.0.1", port),
        client_name="follower",
        reader=follower.reader,
        metrics=follower.metrics,
        now_ms=now_ms,
        **{"server_name": "localhost:8823", "first_pause_s": 0.05, **options},
    )
    task = asyncio.create_task(client.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def over_redis(follower: Follower, url: str, **options: Any) -> AsyncIterator[Follower]:
    link = RedisLink(
        url,
        instance_name="follower",
        source=None,
        reader=follower.reader,
        metrics=follower.metrics,
        **{"server_name": "localhost:8823", **options},
    )
    link.start()
    try:
        yield follower
    finally:
        await link.close()
