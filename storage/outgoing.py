"""Events of ours on their way to other servers, kept until each server has confirmed them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from storage import bulk
from storage.schema import event_json, events, resync_outgoing_events


class OutgoingEvent(NamedTuple):
    """An event that a server has not confirmed, and its JSON."""

    event_id: str
    json: str


def queue_event(
    connection: Connection,
    room_id: str,
    event_id: str,
    destinations: Collection[str],
    *,
    now_ms: int,
) -> None:
    """Queue a stored event for `destinations`, each once."""
    ordering = connection.scalar(
        select(events.c.stream_ordering).where(events.c.event_id == event_id)
    )
    bulk.insert(
        connection,
        resync_outgoing_events,
        ("destination", "event_id", "room_id", "stream_ordering", "queued_ts"),
        [
            (destination, event_id, room_id, ordering, now_ms)
            for destination in dict.fromkeys(destinations)
        ],
    )


def load_destinations(connection: Connection) -> list[str]:
    """The servers that have not confirmed everything, sorted."""
    column = resync_outgoing_events.c.destination
    return list(connection.scalars(select(column).distinct().order_by(column)))


def load_batch(connection: Connection, destination: str, *, limit: int) -> list[OutgoingEvent]:
    """The events that a server gets next, in the order in which they were made."""
    queued = resync_outgoing_events
    rows = connection.execute(
        select(queued.c.event_id, event_json.c.json)
        .join(event_json, event_json.c.event_id == queued.c.event_id)
        .where(queued.c.destination == destination)
        .order_by(queued.c.stream_ordering, queued.c.event_id)
        .limit(limit)
    )
    return [OutgoingEvent._make(row) for row in rows]


def confirm(connection: Connection, destination: str, event_ids: Collection[str]) -> None:
    """A server has these events."""
    queued = resync_outgoing_events
    connection.execute(
        delete(queued).where(
            queued.c.destination == destination,
            bulk.is_in(connection, queued.c.event_id, event_ids),
        )
    )


def delete_old(connection: Connection, *, before_ms: int) -> int:
    """Give up on events queued before a time; returns how many."""
    queued = resync_outgoing_events
    return connection.execute(delete(queued).where(queued.c.queued_ts < before_ms)).rowcount
