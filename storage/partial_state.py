"""Rooms and events in partial state, and taking them out of it.

`partial_state_events` refers to `partial_state_rooms`, so a room cannot be marked as fully stated
while an event of it is partial, whoever inserts that event and whenever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Select, delete, func, insert, select, text
from sqlalchemy.exc import IntegrityError

from storage import bulk
from storage.errors import RoomNotPartial, RoomStillPartial
from storage.schema import (
    event_edges,
    events,
    partial_state_events,
    partial_state_rooms,
    partial_state_rooms_servers,
    rooms,
    un_partial_stated_event_stream,
    un_partial_stated_room_stream,
)

__all__ = [
    "PartialEvent",
    "PartialRoom",
    "RoomNotPartial",
    "RoomStillPartial",
    "clear_partial_events",
    "complete_partial_room",
    "count_partial_events",
    "delete_partial_room",
    "find_partial_events",
    "insert_partial_events",
    "insert_partial_room",
    "load_partial_graph",
    "load_partial_room",
    "load_partial_rooms",
    "load_partial_servers",
]


class PartialRoom(NamedTuple):
    """A room in partial state.

    Attributes:
        joined_via: the server that answered `/send_join`; None if Synapse did not note it.
        join_event_id: our join; None if Synapse did not note it.
        device_lists_stream_id: where the device list stream stood when we joined.
    """

    room_id: str
    room_version: str | None
    joined_via: str | None
    join_event_id: str | None
    device_lists_stream_id: int


class PartialEvent(NamedTuple):
    """An event with partial state and its place in the graph."""

    event_id: str
    prev_event_ids: tuple[str, ...]
    stream_ordering: int
    depth: int


def insert_partial_room(
    connection: Connection,
    room_id: str,
    *,
    joined_via: str,
    servers: Collection[str],
    join_event_id: str | None,
    device_lists_stream_id: int = 0,
) -> None:
    """Mark a known room as partially stated.

    A room that is marked already, by the join of another user, keeps what that join said, and
    the servers are added to those known.
    """
    connection.execute(
        text(
            "INSERT INTO partial_state_rooms"
            " (room_id, device_lists_stream_id, join_event_id, joined_via)"
            " VALUES (:room_id, :device_lists_stream_id, :join_event_id, :joined_via)"
            " ON CONFLICT (room_id) DO NOTHING"
        ),
        {
            "room_id": room_id,
            "device_lists_stream_id": device_lists_stream_id,
            "join_event_id": join_event_id,
            "joined_via": joined_via,
        },
    )
    known = set(load_partial_servers(connection, room_id))
    bulk.insert(
        connection,
        partial_state_rooms_servers,
        ("room_id", "server_name"),
        [(room_id, server) for server in dict.fromkeys(servers) if server not in known],
    )


def insert_partial_events(connection: Connection, room_id: str, event_ids: Iterable[str]) -> None:
    """Mark stored events of a partially stated room as partially stated.

    Raises:
        sqlalchemy.exc.IntegrityError: the room is not partially stated, or an event is not
            stored, belongs to another room, or is marked already.
    """
    bulk.insert(
        connection,
        partial_state_events,
        ("room_id", "event_id"),
        [(room_id, event_id) for event_id in event_ids],
    )


def load_partial_rooms(connection: Connection) -> list[PartialRoom]:
    """Every partially stated room, by room id."""
    return [
        PartialRoom._make(row) for row in connection.execute(_select_rooms().order_by("room_id"))
    ]


def load_partial_room(connection: Connection, room_id: str) -> PartialRoom | None:
    """A partially stated room; None when the room is not one."""
    row = connection.execute(
        _select_rooms().where(partial_state_rooms.c.room_id == room_id)
    ).one_or_none()
    return None if row is None else PartialRoom._make(row)


def load_partial_servers(connection: Connection, room_id: str) -> list[str]:
    """The servers of a partially stated room as `/send_join` named them, sorted."""
    table = partial_state_rooms_servers
    return list(
        connection.scalars(
            select(table.c.server_name)
            .where(table.c.room_id == room_id)
            .order_by(table.c.server_name)
        )
    )


def load_partial_graph(connection: Connection, room_id: str) -> list[PartialEvent]:
    """Every event of the room with partial state, oldest (smallest stream ordering) first."""
    in_room = partial_state_events.c.room_id == room_id
    prev_event_ids: defaultdict[str, list[str]] = defaultdict(list)
    edges = connection.execute(
        select(event_edges.c.event_id, event_edges.c.prev_event_id)
        .join(partial_state_events, partial_state_events.c.event_id == event_edges.c.event_id)
        .where(in_room, event_edges.c.is_state.is_(False))
        .order_by(event_edges.c.event_id, event_edges.c.prev_event_id)
    )
    for event_id, prev_event_id in edges:
        prev_event_ids[event_id].append(prev_event_id)
    rows = connection.execute(
        select(events.c.event_id, events.c.stream_ordering, events.c.depth)
        .join(partial_state_events, partial_state_events.c.event_id == events.c.event_id)
        .where(in_room)
        .order_by(events.c.stream_ordering)
    )
    return [
        PartialEvent(event_id, tuple(prev_event_ids[event_id]), stream_ordering, depth)
        for event_id, stream_ordering, depth in rows
    ]


def count_partial_events(connection: Connection, room_id: str) -> int:
    """How many events of the room have partial state."""
    return (
        connection.scalar(
            select(func.count())
            .select_from(partial_state_events)
            .where(partial_state_events.c.room_id == room_id)
        )
        or 0
    )


def find_partial_events(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` that have partial state."""
    column = partial_state_events.c.event_id
    return set(connection.scalars(select(column).where(bulk.is_in(connection, column, event_ids))))


def clear_partial_events(
    connection: Connection,
    room_id: str,
    rejection_status_changed: Mapping[str, bool],
    stream_ids: Sequence[int],
    instance_name: str,
) -> None:
    """Mark events as fully stated, and write that to `un_partial_stated_event_stream`.

    Args:
        rejection_status_changed: event id to whether it became rejected or accepted thereby.
        stream_ids: one for each event, in the same order.

    Raises:
        RoomNotPartial: some of them are not partially stated; the transaction must not commit.
    """
    if not rejection_status_changed:
        return
    cleared = connection.execute(
        delete(partial_state_events).where(
            partial_state_events.c.room_id == room_id,
            bulk.is_in(connection, partial_state_events.c.event_id, rejection_status_changed),
        )
    )
    if cleared.rowcount != len(rejection_status_changed):
        raise RoomNotPartial(room_id)
    # An event that was partially stated twice (the room was left and joined again) is announced
    # twice, and has one row.
    stream = un_partial_stated_event_stream
    connection.execute(
        delete(stream).where(bulk.is_in(connection, stream.c.event_id, rejection_status_changed))
    )
    bulk.insert(
        connection,
        stream,
        ("stream_id", "instance_name", "event_id", "rejection_status_changed"),
        [
            (stream_id, instance_name, event_id, changed)
            for stream_id, (event_id, changed) in zip(
                stream_ids, rejection_status_changed.items(), strict=True
            )
        ],
    )


def complete_partial_room(
    connection: Connection, room_id: str, stream_id: int, instance_name: str
) -> None:
    """Mark the room as fully stated, and write that to `un_partial_stated_room_stream`.

    Raises:
        RoomStillPartial: an event of it has partial state; the transaction must not commit.
        RoomNotPartial: it is not partially stated.
    """
    _delete_room(connection, room_id)
    connection.execute(
        insert(un_partial_stated_room_stream).values(
            stream_id=stream_id, instance_name=instance_name, room_id=room_id
        )
    )


def delete_partial_room(connection: Connection, room_id: str) -> None:
    """Give a partially stated room up: nothing says any more that it or its events are partial.

    Raises:
        RoomNotPartial: it is not partially stated.
    """
    connection.execute(
        delete(partial_state_events).where(partial_state_events.c.room_id == room_id)
    )
    _delete_room(connection, room_id)


def _delete_room(connection: Connection, room_id: str) -> None:
    connection.execute(
        delete(partial_state_rooms_servers).where(partial_state_rooms_servers.c.room_id == room_id)
    )
    try:
        deleted = connection.execute(
            delete(partial_state_rooms).where(partial_state_rooms.c.room_id == room_id)
        )
    except IntegrityError as error:
        raise RoomStillPartial(room_id) from error
    if deleted.rowcount == 0:
        raise RoomNotPartial(room_id)


def _select_rooms() -> Select[str, str | None, str | None, str | None, int]:
    return select(
        partial_state_rooms.c.room_id,
        rooms.c.room_version,
        partial_state_rooms.c.joined_via,
        partial_state_rooms.c.join_event_id,
        partial_state_rooms.c.device_lists_stream_id,
    ).join(rooms, rooms.c.room_id == partial_state_rooms.c.room_id)
