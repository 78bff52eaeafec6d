"""Large answers, parsed while they arrive and without holding up the event loop.

`/state`, `/send_join` and `/event_auth` answer with a few hundred megabytes at worst.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from typing import Final

from federation.response_parser import (
    STEP_ELEMENTS,
    ParserLimits,
    PduBatch,
    RawPdu,
    ResponseParser,
)

__all__ = [
    "SLICE_BYTES",
    "STEP_ELEMENTS",
    "ParserLimits",
    "PduBatch",
    "RawPdu",
    "ResponseParser",
    "parse_chunks",
    "unobserved",
]

SLICE_BYTES: Final = 64 * 1024
"""How much of a body is parsed before other tasks get their turn: one to two milliseconds."""


def unobserved(seconds: float) -> None:
    """For callers who do not want to know how long parsing takes."""


async def parse_chunks(
    parser: ResponseParser,
    chunks: AsyncIterable[bytes],
    *,
    batch_size: int = 1000,
    observe_parsing: Callable[[float], None] = unobserved,
) -> AsyncGenerator[PduBatch, None]:
    """Runs a whole body through `parser`, giving other tasks their turn every few milliseconds.

    Args:
        observe_parsing: told again and again how many seconds went into parsing.

    Yields:
        The events in batches of `batch_size` to `batch_size + STEP_ELEMENTS`; the last batch of
        each array may be smaller.

    Raises:
        InvalidResponse: as `ResponseParser`. What was yielded before came from the same body.
    """
    collector = _Collector(batch_size)
    async for chunk in chunks:
        for piece in _slices(chunk):
            started = time.perf_counter()
            parser.feed(piece)
            while (parsed := parser.parse()) is not None:
                observe_parsing(time.perf_counter() - started)
                for batch in collector.add(parsed):
                    yield batch
                await asyncio.sleep(0)
                started = time.perf_counter()
            observe_parsing(time.perf_counter() - started)
    parser.close()
    while (parsed := parser.parse()) is not None:
        for batch in collector.add(parsed):
            yield batch
    for batch in collector.flush():
        yield batch


class _Collector:
    """Joins small batches of one section into large ones."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._section = ""
        self._pdus: list[RawPdu] = []

    def add(self, batch: PduBatch) -> Iterator[PduBatch]:
        if not batch.pdus:
            return
        if batch.section != self._section:
            yield from self.flush()
        self._section = batch.section
        self._pdus.extend(batch.pdus)
        if len(self._pdus) >= self._batch_size:
            yield from self.flush()

    def flush(self) -> Iterator[PduBatch]:
        if self._pdus:
            pdus, self._pdus = self._pdus, []
            yield PduBatch(self._section, pdus)


def _slices(data: bytes) -> Iterator[bytes]:
    if len(data) <= SLICE_BYTES:
        yield data
        return
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]
