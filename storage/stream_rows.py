"""Streams as tables: which table backs a stream, reading its rows, writing invalidations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Table, insert, select

from storage.schema import (
    cache_invalidation_stream_by_instance,
    un_partial_stated_event_stream,
    un_partial_stated_room_stream,
)

CURRENT_STATE_CACHES = "cs_cache_fake"
"""The name that stands for all caches that depend on a room's current state."""

_USERS_PER_INVALIDATION = 50
"""Keeps the rows small enough for any reader's line limit, whatever the room's size."""


@dataclass(frozen=True)
class StreamTable:
    """The table that backs a stream: it has the columns `stream_id` and `instance_name`.

    `sequence` is the PostgreSQL sequence its ids come from, `position_name` the name under which
    `stream_positions` keeps the positions of its writers; both are Synapse's.
    """

    table: Table
    row_columns: tuple[str, ...]
    sequence: str
    position_name: str


UN_PARTIAL_STATED_ROOM = StreamTable(
    un_partial_stated_room_stream,
    ("room_id",),
    "un_partial_stated_room_stream_sequence",
    "un_partial_stated_room_stream",
)
UN_PARTIAL_STATED_EVENT = StreamTable(
    un_partial_stated_event_stream,
    ("event_id", "rejection_status_changed"),
    "un_partial_stated_event_stream_sequence",
    "un_partial_stated_event_stream",
)
CACHES = StreamTable(
    cache_invalidation_stream_by_instance,
    ("cache_func", "keys", "invalidation_ts"),
    "cache_invalidation_stream_seq",
    "caches",
)


class StreamRow(NamedTuple):
    """One row: its stream id and its columns, in the order of `StreamTable.row_columns`."""

    stream_id: int
    values: tuple[Any, ...]


class RowBatch(NamedTuple):
    """Rows of one writer in ascending order, complete up to `upto`; `limited` if more follow."""

    rows: list[StreamRow]
    upto: int
    limited: bool


def load_rows(
    connection: Connection, stream: StreamTable, writer: str, after: int, upto: int, limit: int
) -> RowBatch:
    """The rows of `writer` with `after` < id <= `upto`, about `limit` of them at most.

    Rows that share an id are one fact and are never torn apart: a fact of more than `limit` rows
    comes whole.
    """
    table = stream.table
    query = select(table.c.stream_id, *(table.c[name] for name in stream.row_columns)).where(
        table.c.instance_name == writer
    )
    return load_facts(connection, query, table.c.stream_id, after, upto, limit)


def load_facts(
    connection: Connection,
    query: Select[Any],
    stream_id: ColumnElement[int],
    after: int,
    upto: int,
    limit: int,
) -> RowBatch:
    """The rows of `query` with `after` < `stream_id` <= `upto`, as `load_rows` has them.

    The first column of `query` is `stream_id`.
    """
    if after >= upto:
        return RowBatch([], upto, False)
    query = query.order_by(stream_id)
    found = connection.execute(
        query.where(stream_id > after, stream_id <= upto).limit(limit + 1)
    ).all()
    if len(found) <= limit:
        return RowBatch(_rows(found), upto, False)
    next_id = found[limit][0]
    whole = [row for row in found if row[0] < next_id]
    if not whole:
        whole = list(connection.execute(query.where(stream_id == next_id)).all())
    return RowBatch(_rows(whole), whole[-1][0], True)


def _rows(found: Iterable[Any]) -> list[StreamRow]:
    return [StreamRow(row[0], tuple(row[1:])) for row in found]


class CacheInvalidation(NamedTuple):
    """A function whose cached results are void: those for `keys`, or all of them for None."""

    function: str
    keys: Sequence[str] | None


def current_state_invalidations(
    room_id: str, changed_members: Sequence[str]
) -> list[CacheInvalidation]:
    """Void everything that depends on the current state of `room_id`.

    `changed_members` are the users whose membership has changed. They are spread over as many
    invalidations as it takes; there is at least one.
    """
    starts = range(0, max(len(changed_members), 1), _USERS_PER_INVALIDATION)
    return [
        CacheInvalidation(
            CURRENT_STATE_CACHES,
            [room_id, *changed_members[start : start + _USERS_PER_INVALIDATION]],
        )
        for start in starts
    ]


def write_cache_invalidations(
    connection: Connection,
    stream_ids: Sequence[int],
    instance_name: str,
    invalidations: Sequence[tuple[str, Sequence[str] | None]],
    invalidation_ts: int,
) -> None:
    """Write rows of the `caches` stream, one id each; `invalidation_ts` in ms.

    Raises ValueError if there are not as many ids as invalidations.
    """
    if len(stream_ids) != len(invalidations):
        raise ValueError(f"{len(invalidations)} invalidations need as many ids: {len(stream_ids)}")
    if not invalidations:
        return
    connection.execute(
        insert(cache_invalidation_stream_by_instance),
        [
            {
                "stream_id": stream_id,
                "instance_name": instance_name,
                "cache_func": function,
                "keys": None if keys is None else list(keys),
                "invalidation_ts": invalidation_ts,
            }
            for stream_id, (function, keys) in zip(stream_ids, invalidations, strict=True)
        ],
    )
