"""Loading events, what they set, why they were rejected, and their auth chains.

Event ids may come from strangers; ids that no database can hold are treated as not known.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, select

from federation.events import Event, StateKey
from storage import bulk, schema
from storage.errors import RoomVersionUnknown


class StoredEvent(NamedTuple):
    """An event as it is stored; `rejection_reason` is None when it was accepted."""

    event: Event
    rejection_reason: str | None
    outlier: bool
    stream_ordering: int


class StateEntry(NamedTuple):
    """What an event sets; `key` is None for an event that is not a state event."""

    key: StateKey | None
    rejected: bool


def find_known(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` that are stored, outlier or not, accepted or rejected."""
    column = schema.events.c.event_id
    return set(connection.scalars(select(column).where(bulk.is_in(connection, column, event_ids))))


def find_of_other_rooms(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> set[str]:
    """Those of `event_ids` that are stored, outlier or not, and of another room than this."""
    events = schema.events
    query = select(events.c.event_id).where(
        bulk.is_in(connection, events.c.event_id, event_ids), events.c.room_id != room_id
    )
    return set(connection.scalars(query))


def find_in_graph(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` that have their place in the room's graph, so are no outliers."""
    events = schema.events
    query = select(events.c.event_id).where(
        bulk.is_in(connection, events.c.event_id, event_ids), events.c.outlier.is_(False)
    )
    return set(connection.scalars(query))


def load_events(connection: Connection, event_ids: Collection[str]) -> dict[str, StoredEvent]:
    """Those of `event_ids` that are stored, by id.

    Raises:
        RoomVersionUnknown: an event's room has no row in `rooms`.
    """
    events, jsons, rooms, rejections = (
        schema.events,
        schema.event_json,
        schema.rooms,
        schema.rejections,
    )
    rows = connection.execute(
        select(
            events.c.event_id,
            events.c.room_id,
            rooms.c.room_version,
            jsons.c.json,
            rejections.c.reason,
            events.c.outlier,
            events.c.stream_ordering,
        )
        .join(jsons, jsons.c.event_id == events.c.event_id)
        .outerjoin(rooms, rooms.c.room_id == events.c.room_id)
        .outerjoin(rejections, rejections.c.event_id == events.c.event_id)
        .where(bulk.is_in(connection, events.c.event_id, event_ids))
    )
    loaded = {}
    for event_id, room_id, room_version, json_text, reason, outlier, stream_ordering in rows:
        if room_version is None:
            raise RoomVersionUnknown(room_id)
        event = Event.from_pdu(
            json.loads(json_text), room_version, event_id=event_id, json_text=json_text
        )
        loaded[event_id] = StoredEvent(event, reason, outlier, stream_ordering)
    return loaded


def load_senders(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """The users who sent `event_ids`."""
    table = schema.events
    query = select(table.c.sender).where(bulk.is_in(connection, table.c.event_id, event_ids))
    return set(connection.scalars(query.distinct()))


def load_rejections(connection: Connection, event_ids: Collection[str]) -> dict[str, str]:
    """The rejected ones of `event_ids`, with the reason."""
    table = schema.rejections
    rows = connection.execute(
        select(table.c.event_id, table.c.reason).where(
            bulk.is_in(connection, table.c.event_id, event_ids)
        )
    )
    return {row.event_id: row.reason for row in rows}


def load_state_entries(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> dict[str, StateEntry]:
    """What each of `event_ids` sets that is stored and of the room, without loading the events."""
    events, state, rejections = schema.events, schema.state_events, schema.rejections
    rows = connection.execute(
        select(events.c.event_id, state.c.type, state.c.state_key, rejections.c.reason)
        .outerjoin(state, state.c.event_id == events.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == events.c.event_id)
        .where(events.c.room_id == room_id, bulk.is_in(connection, events.c.event_id, event_ids))
    )
    return {
        event_id: StateEntry(
            None if type_ is None else StateKey(type_, state_key), reason is not None
        )
        for event_id, type_, state_key, reason in rows
    }


def load_auth_chain(connection: Connection, event_ids: Collection[str]) -> dict[str, StoredEvent]:
    """`event_ids`, their auth events, and theirs, as far as they are stored.

    Auth events that are missing are left out. The create event of a version 12 room is in no
    auth chain, since no event names it.
    """
    given = load_events(connection, event_ids)
    # event_auth has state events only: what other events name comes from their JSON.
    seeds = given.keys() | {
        auth_id
        for stored in given.values()
        if not stored.event.is_state
        for auth_id in stored.event.auth_event_ids
    }
    found = _reachable(connection, seeds)
    return given | load_events(connection, found - given.keys())


def _reachable(connection: Connection, seeds: Collection[str]) -> set[str]:
    """Every event id that is in `seeds` or in the auth chain of one, known or not."""
    auth = schema.event_auth
    first = (
        select(auth.c.auth_id.label("event_id"))
        .where(bulk.is_in(connection, auth.c.event_id, seeds))
        .cte("chain", recursive=True)
    )
    # UNION, not UNION ALL: it also ends on cycles, which rooms of version 1 and 2 can have.
    chain = first.union(select(auth.c.auth_id).join(first, auth.c.event_id == first.c.event_id))
    return set(seeds) | set(connection.scalars(select(chain.c.event_id)))
