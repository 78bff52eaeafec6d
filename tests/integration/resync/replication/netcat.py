"""A worker's replication on a real database and a real socket, and a netcat to talk to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, select

from resync.replication.metrics import ReplicationMetrics
from resync.replication.server import ReplicationServer
from resync.replication.streams import open_generators
from storage.database import Database
from storage.schema import partial_state_rooms
from storage.streams import StreamIdGenerator, write_cache_invalidations

PATIENCE_S = 20.0


def now_ms() -> int:
    return int(time.time() * 1000)


class Netcat:
    """A person at a terminal: sends what is typed and shows the lines that come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def type(self, *lines: str) -> None:
        await self.send("".join(line + "\n" for line in lines).encode())

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def line(self) -> str | None:
        """The next line; None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            data = await self._reader.readline()
        return data.decode().removesuffix("\n") if data else None

    async def lines(self, count: int) -> list[str | None]:
        return [await self.line() for _ in range(count)]

    async def until(self, beginning: str) -> str:
        """The next line that begins so; PINGs and whatever else comes before it are dropped."""
        while True:
            line = await self.line()
            assert line is not None, f"the connection ended before a line {beginning!r}"
            if line.startswith(beginning):
                return line

    async def rest(self) -> list[str]:
        """All lines up to the end of the connection."""
        lines = []
        while (line := await self.line()) is not None:
            lines.append(line)
        return lines

    def close_input(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(port: int | None) -> AsyncIterator[Netcat]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    netcat = Netcat(reader, writer)
    try:
        yield netcat
    finally:
        await netcat.close()


@dataclass
class Worker:
    """What a worker process has of replication."""

    database: Database
    generators: dict[str, StreamIdGenerator]
    server: ReplicationServer
    registry: CollectorRegistry
    instance_name: str

    @property
    def port(self) -> int | None:
        return self.server.port

    async def invalidate(self, *functions: str, keys: Sequence[str] | None = ("key",)) -> list[int]:
        """Write one row for each of `functions` in one transaction, and say so."""
        async with self.generators["caches"].reserve(len(functions)) as ids:
            rows = [(function, keys) for function in functions]
            await self.database.run(write_cache_invalidations, ids, self.instance_name, rows, 5)
        await self.server.notify()
        return ids

    def asked(self, transport: str) -> bool:
        """Whether a reader has asked for positions, other than ourselves on Redis."""
        asked = self.sample(
            "resync_replication_commands_received_total", transport=transport, command="REPLICATE"
        )
        return (asked or 0) > (1 if transport == "redis" else 0)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def running(
    database: Database,
    instance_name: str = "resync1",
    *,
    poll_interval_s: float = 0.1,
    port: int = 0,
    server_name: str = "localhost:8823",
    redis_url: str | None = None,
) -> AsyncIterator[Worker]:
    """A worker's replication from start to orderly end."""
    registry = CollectorRegistry()
    generators = await open_generators(database, instance_name)

    async def is_partial(room_id: str) -> bool:
        return await database.read(_is_partial, room_id)

    server = ReplicationServer(
        database,
        generators,
        server_name=server_name,
        instance_name=instance_name,
        metrics=ReplicationMetrics(registry),
        now_ms=now_ms,
        is_partial=is_partial,
        tcp=("127.0.0.1", port),
        redis_url=redis_url,
        poll_interval_s=poll_interval_s,
    )
    await server.start()
    try:
        yield Worker(database, generators, server, registry, instance_name)
    finally:
        await server.close()


def _is_partial(connection: Connection, room_id: str) -> bool:
    query = select(partial_state_rooms).where(partial_state_rooms.c.room_id == room_id)
    return connection.execute(query).first() is not None
