"""The rows of Synapse's `events` stream, read from the tables that Synapse keeps it in.

Three kinds of facts share the ids of this stream: new events, events that are no longer outliers,
and changes of the current state. We follow the stream and do not write it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    column,
    inspect,
    null,
    select,
    table,
)

from storage.schema import (
    current_state_delta_stream,
    events,
    redactions,
    rejections,
    room_memberships,
    state_events,
)
from storage.stream_rows import RowBatch, StreamRow, load_facts

EVENT = "ev"
STATE = "state"

# Synapse has these tables, a database of our own has not.
_EVENT_RELATIONS = table("event_relations", column("event_id", Text), column("relates_to_id", Text))
_EX_OUTLIERS = table(
    "ex_outlier_stream",
    column("event_stream_ordering", BigInteger),
    column("event_id", Text),
    column("instance_name", Text),
)


def load_event_rows(
    connection: Connection, writer: str, after: int, upto: int, limit: int
) -> RowBatch:
    """The rows of `writer` with `after` < id <= `upto`, about `limit` of each kind at most.

    The values of a row are `("ev", (event_id, room_id, type, state_key, redacts, relates_to,
    membership, rejected, outlier))` or `("state", (room_id, type, state_key, event_id))`. Rows
    that share an id all come, or none.
    """
    tables = inspect(connection)
    deltas = current_state_delta_stream
    new_events = _event_columns(
        events.c.stream_ordering, has_relations=tables.has_table("event_relations")
    ).where(events.c.instance_name == writer)
    sources: list[tuple[str, Select[Any], ColumnElement[int]]] = [
        (EVENT, new_events, events.c.stream_ordering),
        (
            STATE,
            select(
                deltas.c.stream_id,
                deltas.c.room_id,
                deltas.c.type,
                deltas.c.state_key,
                deltas.c.event_id,
            ).where(deltas.c.instance_name == writer),
            deltas.c.stream_id,
        ),
    ]
    if tables.has_table("ex_outlier_stream"):
        ordering = _EX_OUTLIERS.c.event_stream_ordering
        former_outliers = (
            _event_columns(ordering, has_relations=True)
            .join(_EX_OUTLIERS, _EX_OUTLIERS.c.event_id == events.c.event_id)
            .where(_EX_OUTLIERS.c.instance_name == writer)
        )
        sources.append((EVENT, former_outliers, ordering))
    batches = [
        (kind, load_facts(connection, query, stream_id, after, upto, limit))
        for kind, query, stream_id in sources
    ]
    complete = min(batch.upto for _, batch in batches)
    rows = [
        StreamRow(row.stream_id, (kind, row.values))
        for kind, batch in batches
        for row in batch.rows
        if row.stream_id <= complete
    ]
    rows.sort(key=lambda row: row.stream_id)
    return RowBatch(rows, complete, complete < upto)


def _event_columns(stream_id: ColumnElement[int], *, has_relations: bool) -> Select[Any]:
    relates_to = _EVENT_RELATIONS.c.relates_to_id if has_relations else null()
    query = select(
        stream_id,
        events.c.event_id,
        events.c.room_id,
        events.c.type,
        state_events.c.state_key,
        redactions.c.redacts,
        relates_to,
        room_memberships.c.membership,
        rejections.c.reason.is_not(None),
        events.c.outlier,
    ).select_from(events)
    joined = [redactions, state_events, room_memberships, rejections]
    for other in joined:
        query = query.outerjoin(other, other.c.event_id == events.c.event_id)
    if has_relations:
        query = query.outerjoin(_EVENT_RELATIONS, _EVENT_RELATIONS.c.event_id == events.c.event_id)
    return query
