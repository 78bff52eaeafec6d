"""Storing events, as outliers or in the graph, and the outcome of auth checks run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, select, text, update

from federation.events import Event
from storage import bulk, schema
from storage.errors import UnstorableEvent
from storage.event_reader import (
    StoredEvent,
    find_in_graph,
    find_known,
    load_events,
    load_rejections,
)
from storage.event_rows import (
    AUTH_COLUMNS,
    EVENT_COLUMNS,
    JSON_COLUMNS,
    MEMBERSHIP_COLUMNS,
    REDACTION_COLUMNS,
    REJECTION_COLUMNS,
    STATE_COLUMNS,
    auth_rows,
    event_row,
    json_row,
    membership_row,
    redaction_row,
    unstorable_reason,
)
from storage.extremities import (
    SOFT_FAILED_METADATA,
    add_all_to_graph,
    add_to_graph,
    follow_rejections,
)
from storage.state_groups import set_event_state_groups

OUTLIER_METADATA = '{"outlier":true}'


def insert_outliers(
    connection: Connection,
    events: Sequence[Event],
    *,
    rejections: Mapping[str, str],
    instance_name: str,
    received_ts: int,
) -> set[str]:
    """Store `events` without a place in the graph; those that are stored stay as they are.

    Args:
        rejections: event id to reason, for those of `events` that failed an auth check.
        instance_name: who stores them.
        received_ts: ms.

    Returns:
        The ids of the events that were new.

    Raises:
        UnstorableEvent: see `unstorable_reason`; nothing was stored.
    """
    _check_storable(events)
    by_id = {event.event_id: event for event in events}
    unknown = sorted(by_id.keys() - find_known(connection, by_id))
    if not unknown:
        return set()
    orderings = dict(zip(unknown, next_stream_orderings(connection, len(unknown)), strict=True))
    new = bulk.insert_new(
        connection,
        schema.events,
        EVENT_COLUMNS,
        [
            event_row(
                by_id[event_id],
                stream_ordering=ordering,
                outlier=True,
                rejection=rejections.get(event_id),
                instance_name=instance_name,
                received_ts=received_ts,
            )
            for event_id, ordering in orderings.items()
        ],
        key="event_id",
        looked_up=True,
    )
    stored = [by_id[event_id] for event_id in unknown if event_id in new]
    _insert_details(
        connection,
        stored,
        orderings,
        rejections=rejections,
        metadata=OUTLIER_METADATA,
        received_ts=received_ts,
    )
    return new


def insert_event(
    connection: Connection,
    event: Event,
    *,
    state_group: int | None,
    rejection_reason: str | None,
    instance_name: str,
    received_ts: int,
    soft_failed: bool = False,
) -> bool:
    """Store `event` with its place in the graph; an outlier becomes part of the graph.

    Args:
        state_group: the state after the event.
        rejection_reason: None when it was accepted.
        received_ts: ms.
        soft_failed: accepted, but held back from clients and from the extremities (check 6).

    Returns:
        Whether anything changed: an event that is in the graph stays as it is.

    Raises:
        UnstorableEvent: see `unstorable_reason`.
    """
    _check_storable([event])
    rejections = {} if rejection_reason is None else {event.event_id: rejection_reason}
    metadata = SOFT_FAILED_METADATA if soft_failed else "{}"
    (ordering,) = next_stream_orderings(connection, 1)
    row = event_row(
        event,
        stream_ordering=ordering,
        outlier=False,
        rejection=rejection_reason,
        instance_name=instance_name,
        received_ts=received_ts,
    )
    if bulk.insert_new(connection, schema.events, EVENT_COLUMNS, [row], key="event_id"):
        _insert_details(
            connection,
            [event],
            {event.event_id: ordering},
            rejections=rejections,
            metadata=metadata,
            received_ts=received_ts,
        )
    elif not _take_from_outliers(connection, event.event_id, metadata):
        return False
    elif load_rejections(connection, [event.event_id]) != rejections:
        _store_rejections(connection, {event.event_id: rejection_reason})
    add_to_graph(connection, event, counts=rejection_reason is None and not soft_failed)
    if state_group is not None:
        set_event_state_groups(connection, {event.event_id: state_group})
    return True


class GraphEvent(NamedTuple):
    """An event with its verdict, to be stored with its place in the graph.

    Attributes:
        state_group: the state after the event.
        rejection_reason: None when it was accepted.
        soft_failed: accepted, but held back from clients and from the extremities (check 6).
    """

    event: Event
    state_group: int
    rejection_reason: str | None
    soft_failed: bool


def insert_graph_events(
    connection: Connection,
    room_id: str,
    new: Sequence[GraphEvent],
    *,
    instance_name: str,
    received_ts: int,
) -> set[str]:
    """`insert_event` for many events of one room, in a number of statements that is fixed.

    Args:
        new: in the order in which their stream orderings are to be.

    Returns:
        The ids of the events that were not in the graph before.

    Raises:
        UnstorableEvent: see `unstorable_reason`.
    """
    _check_storable([entry.event for entry in new])
    in_graph = find_in_graph(connection, [entry.event.event_id for entry in new])
    by_id = {entry.event.event_id: entry for entry in new if entry.event.event_id not in in_graph}
    outliers = find_known(connection, by_id)
    fresh = [event_id for event_id in by_id if event_id not in outliers]
    orderings = dict(zip(fresh, next_stream_orderings(connection, len(fresh)), strict=True))
    inserted = bulk.insert_new(
        connection,
        schema.events,
        EVENT_COLUMNS,
        [
            event_row(
                by_id[event_id].event,
                stream_ordering=ordering,
                outlier=False,
                rejection=by_id[event_id].rejection_reason,
                instance_name=instance_name,
                received_ts=received_ts,
            )
            for event_id, ordering in orderings.items()
        ],
        key="event_id",
    )
    for metadata, soft_failed in (("{}", False), (SOFT_FAILED_METADATA, True)):
        entries = [by_id[i] for i in fresh if i in inserted and by_id[i].soft_failed is soft_failed]
        _insert_details(
            connection,
            [entry.event for entry in entries],
            orderings,
            rejections={
                entry.event.event_id: entry.rejection_reason
                for entry in entries
                if entry.rejection_reason is not None
            },
            metadata=metadata,
            received_ts=received_ts,
        )
    # Few: events that some state had named before they came by themselves.
    for event_id in by_id.keys() - inserted:
        entry = by_id[event_id]
        if not _take_from_outliers(
            connection, event_id, SOFT_FAILED_METADATA if entry.soft_failed else "{}"
        ):
            del by_id[event_id]
            continue
        if load_rejections(connection, [event_id]).get(event_id) != entry.rejection_reason:
            _store_rejections(connection, {event_id: entry.rejection_reason})
    add_all_to_graph(
        connection,
        room_id,
        [entry.event for entry in by_id.values()],
        {
            event_id
            for event_id, entry in by_id.items()
            if entry.rejection_reason is None and not entry.soft_failed
        },
    )
    set_event_state_groups(
        connection, {event_id: entry.state_group for event_id, entry in by_id.items()}
    )
    return set(by_id)


def _take_from_outliers(connection: Connection, event_id: str, metadata: str) -> bool:
    taken = connection.execute(
        update(schema.events)
        .where(schema.events.c.event_id == event_id, schema.events.c.outlier.is_(True))
        .values(outlier=False)
    )
    if taken.rowcount == 0:
        return False
    connection.execute(
        update(schema.event_json)
        .where(schema.event_json.c.event_id == event_id)
        .values(internal_metadata=metadata)
    )
    return True


def _insert_details(
    connection: Connection,
    events: Sequence[Event],
    stream_orderings: Mapping[str, int],
    *,
    rejections: Mapping[str, str],
    metadata: str,
    received_ts: int,
) -> None:
    """Everything about new events but their rows in `events`, which this transaction inserted."""
    state_events = [event for event in events if event.is_state]
    accepted = [event for event in events if event.event_id not in rejections]
    bulk.insert(
        connection, schema.event_json, JSON_COLUMNS, [json_row(event, metadata) for event in events]
    )
    bulk.insert(
        connection,
        schema.event_auth,
        AUTH_COLUMNS,
        [row for event in state_events for row in auth_rows(event)],
    )
    bulk.insert(
        connection,
        schema.state_events,
        STATE_COLUMNS,
        [(event.event_id, event.room_id, *event.key) for event in state_events],
    )
    _insert_accepted_details(
        connection, accepted, stream_orderings, {event.event_id: received_ts for event in accepted}
    )
    bulk.insert(
        connection,
        schema.rejections,
        REJECTION_COLUMNS,
        [
            (event.event_id, rejections[event.event_id], str(received_ts))
            for event in events
            if event.event_id in rejections
        ],
    )


def _insert_accepted_details(
    connection: Connection,
    events: Sequence[Event],
    stream_orderings: Mapping[str, int],
    received_ts: Mapping[str, int],
) -> None:
    """What is kept of accepted events only: memberships and redactions."""
    memberships = (membership_row(event, stream_orderings[event.event_id]) for event in events)
    bulk.insert(
        connection,
        schema.room_memberships,
        MEMBERSHIP_COLUMNS,
        [row for row in memberships if row is not None],
    )
    redactions = (redaction_row(event, received_ts[event.event_id]) for event in events)
    bulk.insert(
        connection,
        schema.redactions,
        REDACTION_COLUMNS,
        [row for row in redactions if row is not None],
    )


def next_stream_orderings(connection: Connection, count: int) -> list[int]:
    """`count` ids of the events stream, ascending."""
    if connection.dialect.name == "postgresql":
        drawn = connection.execute(
            text("SELECT nextval('events_stream_seq') FROM generate_series(1, :count)"),
            {"count": count},
        )
        return sorted(drawn.scalars())
    last = connection.scalar(
        text(
            "SELECT max(1, coalesce((SELECT max(stream_ordering) FROM events), 1),"
            " coalesce((SELECT max(stream_id) FROM current_state_delta_stream), 1))"
        )
    )
    assert last is not None
    return list(range(last + 1, last + 1 + count))


def set_rejections(connection: Connection, rejections: Mapping[str, str | None]) -> None:
    """Record the outcome of auth checks that were run again: a reason, or None for accepted.

    What depends on it follows: memberships, redactions, the forward extremities of the room.
    Events that are not stored are left out.
    """
    changed = defaultdict(set)
    for event_id, stored in _store_rejections(connection, rejections).items():
        if not stored.outlier:
            changed[stored.event.room_id].add(event_id)
    for room_id, event_ids in changed.items():
        follow_rejections(connection, room_id, event_ids)


def _store_rejections(
    connection: Connection, rejections: Mapping[str, str | None]
) -> dict[str, StoredEvent]:
    """Write the outcomes, but leave the graph alone; returns the events as they were."""
    stored = load_events(connection, rejections.keys())
    if not stored:
        return {}
    for table in (schema.rejections, schema.room_memberships, schema.redactions):
        connection.execute(delete(table).where(bulk.is_in(connection, table.c.event_id, stored)))
    connection.execute(
        text("UPDATE events SET rejection_reason = :reason WHERE event_id = :event_id"),
        [{"event_id": event_id, "reason": rejections[event_id]} for event_id in sorted(stored)],
    )
    received_ts = _load_received_ts(connection, stored)
    bulk.insert(
        connection,
        schema.rejections,
        REJECTION_COLUMNS,
        [
            (event_id, reason, str(received_ts[event_id]))
            for event_id in stored
            if (reason := rejections[event_id]) is not None
        ],
    )
    accepted = [stored[event_id] for event_id in stored if rejections[event_id] is None]
    _insert_accepted_details(
        connection,
        [entry.event for entry in accepted],
        {entry.event.event_id: entry.stream_ordering for entry in accepted},
        received_ts,
    )
    return stored


def _load_received_ts(connection: Connection, event_ids: Collection[str]) -> dict[str, int]:
    table = schema.events
    rows = connection.execute(
        select(table.c.event_id, table.c.received_ts).where(
            bulk.is_in(connection, table.c.event_id, event_ids)
        )
    )
    return {row.event_id: row.received_ts or 0 for row in rows}


def _check_storable(events: Sequence[Event]) -> None:
    for event in events:
        reason = unstorable_reason(event)
        if reason is not None:
            raise UnstorableEvent(event.event_id, reason)
