"""The streams we write: what a row means, and how it looks on the wire.

A new stream is one class here and one entry in `STREAMS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from storage.database import Database
from storage.streams import (
    CACHES,
    UN_PARTIAL_STATED_EVENT,
    UN_PARTIAL_STATED_ROOM,
    StreamIdGenerator,
    StreamTable,
)


class StreamRows(NamedTuple):
    """Rows of one writer, in ascending order of their ids, as announced or received."""

    stream_name: str
    instance_name: str
    rows: Sequence[tuple[int, Any]]
    """Pairs of stream id and row, the row as JSON values."""


class InvalidRow(ValueError):
    """A row that does not have the form of its stream."""

    def __init__(self, stream_name: str, row: object) -> None:
        super().__init__(f"{str(row)[:200]} is not a row of the stream {stream_name}")


class Row(Protocol):
    """One row of a stream; its fields are the columns of the table, in order."""

    NAME: ClassVar[str]
    TABLE: ClassVar[StreamTable]

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """Read the row of an `RDATA`. Raises InvalidRow."""
        ...

    def to_json(self) -> list[Any]:
        """The row of an `RDATA`."""
        ...


@dataclass(frozen=True, slots=True)
class UnPartialStatedRoom:
    """`["!room"]`: the room is fully stated."""

    NAME: ClassVar[str] = "un_partial_stated_room"
    TABLE: ClassVar[StreamTable] = UN_PARTIAL_STATED_ROOM
    room_id: str

    @classmethod
    def from_json(cls, row: Any) -> Self:
        match row:
            case [str(room_id)]:
                return cls(room_id)
        raise InvalidRow(cls.NAME, row)

    def to_json(self) -> list[Any]:
        return [self.room_id]


@dataclass(frozen=True, slots=True)
class UnPartialStatedEvent:
    """`["$event", rejection_status_changed]`: the state before the event is known in full."""

    NAME: ClassVar[str] = "un_partial_stated_event"
    TABLE: ClassVar[StreamTable] = UN_PARTIAL_STATED_EVENT
    event_id: str
    rejection_status_changed: bool

    @classmethod
    def from_json(cls, row: Any) -> Self:
        match row:
            case [str(event_id), bool(changed)]:
                return cls(event_id, changed)
        raise InvalidRow(cls.NAME, row)

    def to_json(self) -> list[Any]:
        return [self.event_id, bool(self.rejection_status_changed)]


@dataclass(frozen=True, slots=True)
class Invalidation:
    """`["function", [keys] | null, timestamp]`: drop what is cached for the keys, or all of it."""

    NAME: ClassVar[str] = "caches"
    TABLE: ClassVar[StreamTable] = CACHES
    cache_func: str
    keys: list[str] | None
    invalidation_ts: int | None

    @classmethod
    def from_json(cls, row: Any) -> Self:
        match row:
            case [str(function), list() | None as keys, int() | None as timestamp]:
                return cls(function, keys, timestamp)
        raise InvalidRow(cls.NAME, row)

    def to_json(self) -> list[Any]:
        return [self.cache_func, self.keys, self.invalidation_ts]


STREAMS: Mapping[str, type[Row]] = {
    row.NAME: row for row in (Invalidation, UnPartialStatedEvent, UnPartialStatedRoom)
}
"""Every stream we write, by the name it has on the wire, in the order in which they are announced:
whoever is woken by a room's row must find that its caches were dropped before."""


async def open_generators(database: Database, instance_name: str) -> dict[str, StreamIdGenerator]:
    """A generator of ids for each stream, by the stream's name.

    `instance_name` must be this process's own: two processes that write under one name cannot
    tell each other's unfinished ids.
    """
    return {
        name: await StreamIdGenerator.open(database, row.TABLE, instance_name)
        for name, row in STREAMS.items()
    }
