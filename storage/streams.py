"""Streams: reserving ids for rows and knowing how far every writer has got.

    async with generator.reserve(2) as stream_ids:
        await database.run(write_rows, stream_ids)

The ids are complete when the block is left, by whatever way. The rows must be committed by then,
or never.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from sqlalchemy import Connection

from storage.database import Database
from storage.stream_positions import load_positions, next_ids, prepare_ids
from storage.stream_rows import (
    CACHES,
    UN_PARTIAL_STATED_EVENT,
    UN_PARTIAL_STATED_ROOM,
    CacheInvalidation,
    RowBatch,
    StreamRow,
    StreamTable,
    current_state_invalidations,
    load_rows,
    write_cache_invalidations,
)
from storage.stream_tracker import PositionTracker

__all__ = [
    "CACHES",
    "UN_PARTIAL_STATED_EVENT",
    "UN_PARTIAL_STATED_ROOM",
    "CacheInvalidation",
    "PositionTracker",
    "RowBatch",
    "SequenceWentBack",
    "StreamIdGenerator",
    "StreamRow",
    "StreamTable",
    "current_state_invalidations",
    "load_rows",
    "write_cache_invalidations",
]


class SequenceWentBack(RuntimeError):
    """The database handed out an id that is in use already; nothing was written under it."""

    def __init__(self, sequence: str) -> None:
        super().__init__(
            f"the ids of {sequence} have gone back while this process was running, as after a"
            " restore of the database; restart the worker, which moves them forward again"
        )


class StreamIdGenerator:
    """Hands out the ids of one stream to one writer and tracks their completion.

    One per stream and process. `tracker` knows the positions of all writers; `start` is the
    largest id that had been handed out when the generator was opened.
    """

    def __init__(self, database: Database, stream: StreamTable, tracker: PositionTracker) -> None:
        self.stream = stream
        self.tracker = tracker
        self.start = tracker.allocated
        self._database = database

    @classmethod
    async def open(cls, database: Database, stream: StreamTable, instance_name: str) -> Self:
        """Begin where the database stands.

        An id that was reserved by a writer of our name and never completed is gone for good:
        its process is dead, so it holds nobody up.
        """
        last, others = await database.run(_start, stream, instance_name)
        return cls(database, stream, PositionTracker(instance_name, start=last, others=others))

    @property
    def instance_name(self) -> str:
        """The writer that the ids are handed out to."""
        return self.tracker.local_writer

    @property
    def position(self) -> int:
        """The largest id up to which everything of ours is complete."""
        return self.tracker.position(self.instance_name)

    @asynccontextmanager
    async def reserve(self, count: int = 1) -> AsyncIterator[list[int]]:
        """Reserve `count` ids, ascending; leaving the block completes them.

        Raises SequenceWentBack if the database hands out ids that were in use.
        """
        if count < 1:
            raise ValueError("at least one id must be reserved")
        reservation = self.tracker.begin()
        try:
            stream_ids = await self._database.run(next_ids, self.stream, count)
            try:
                self.tracker.reserve(reservation, stream_ids)
            except ValueError:
                raise SequenceWentBack(self.stream.sequence) from None
            yield stream_ids
        finally:
            self.tracker.complete(reservation)


def _start(
    connection: Connection, stream: StreamTable, instance_name: str
) -> tuple[int, dict[str, int]]:
    last = prepare_ids(connection, stream)
    others = load_positions(connection, stream)
    others.pop(instance_name, None)
    return last, others
