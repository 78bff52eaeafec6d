"""The worker at work, and a replication client that listens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from resync.config import Config
from resync.demo.errors import DemoFailed
from resync.worker import Worker

_ANNOUNCEMENT_SECONDS = 10.0


class Reader:
    """A replication client: what a person would see who runs netcat against the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Condition()
        self.lines: list[str] = []

    async def run(self) -> None:
        """Ask for the streams, and keep every line but the keep-alives."""
        self._writer.write(b"NAME demo-reader\nREPLICATE\n")
        while line := await self._reader.readline():
            text = line.decode().rstrip("\n")
            if not text.startswith("PING "):
                async with self._changed:
                    self.lines.append(text)
                    self._changed.notify_all()

    async def wait_for(self, stream: str, row: str) -> None:
        """Wait for a row of a stream that has `row` in it. Raises `DemoFailed`."""

        def is_there() -> bool:
            return any(line.startswith(f"RDATA {stream} ") and row in line for line in self.lines)

        try:
            async with asyncio.timeout(_ANNOUNCEMENT_SECONDS), self._changed:
                await self._changed.wait_for(is_there)
        except TimeoutError as error:
            raise DemoFailed(f"no row of {stream} came for {row}") from error


@asynccontextmanager
async def working(worker: Worker, config: Config) -> AsyncIterator[Reader]:
    """The worker at work and a replication reader connected to it, until the block ends."""
    work = asyncio.create_task(worker.run())
    assert config.replication.tcp is not None
    streams = await _connect(config.replication.tcp.bind, config.replication.tcp.port, work)
    reader = Reader(*streams)
    reading = asyncio.create_task(reader.run())
    body = asyncio.current_task()
    assert body is not None
    failed = False

    def ended(task: asyncio.Task[None]) -> None:
        nonlocal failed
        if not task.cancelled():
            failed = True
            body.cancel()

    # A worker that ends before the story does would leave it waiting for ever.
    work.add_done_callback(ended)
    try:
        yield reader
    except asyncio.CancelledError:
        if failed:
            raise DemoFailed(f"the worker ended: {work.exception()}") from work.exception()
        raise
    finally:
        work.remove_done_callback(ended)
        for task in (work, reading):
            task.cancel()
        await asyncio.gather(work, reading, return_exceptions=True)
        streams[1].close()


async def _connect(
    host: str, port: int, work: asyncio.Task[None]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as soon as the worker listens."""
    while True:
        try:
            return await asyncio.open_connection(host, port)
        except OSError:
            if work.done():
                work.result()
                raise
            await asyncio.sleep(0.05)
