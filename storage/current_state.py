"""The current state of rooms, its changes as a stream, and the memberships of local users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, literal, null, select

from federation.events import StateKey
from storage import bulk, schema
from storage.errors import UnknownEvents
from storage.events import next_stream_orderings

MEMBER = "m.room.member"

_COLUMNS = ("event_id", "room_id", "type", "state_key", "membership", "event_stream_ordering")
_DELTA_COLUMNS = (
    "stream_id",
    "instance_name",
    "room_id",
    "type",
    "state_key",
    "event_id",
    "prev_event_id",
)
_LOCAL_COLUMNS = ("room_id", "user_id", "event_id", "membership", "event_stream_ordering")


class _Details(NamedTuple):
    """What is repeated of an event where it is current."""

    membership: str | None
    stream_ordering: int


def replace_current_state(
    connection: Connection,
    room_id: str,
    state: Mapping[StateKey, str],
    *,
    instance_name: str,
    own_server: str | None = None,
) -> int:
    """Make `state` the current state of the room, writing only what differs from what it was.

    Every difference goes to `current_state_delta_stream`, all with the same id of the events
    stream, and what concerns local users to `local_current_membership`.

    Args:
        state: the entry of each event is the one that it sets.
        own_server: whose users are local; None for the server of the users of this room that
            are known to be local.

    Returns:
        How many entries changed.

    Raises:
        UnknownEvents: `state` names an event that is not stored as a state event of the room.
    """
    before = load_current_state(connection, room_id)
    changed = {
        StateKey(*key): event_id for key, event_id in state.items() if before.get(key) != event_id
    }
    gone = before.keys() - state.keys()
    return _write(connection, room_id, before, changed, gone, instance_name, own_server)


def change_current_state(
    connection: Connection,
    room_id: str,
    changes: Mapping[StateKey, str | None],
    *,
    instance_name: str,
    own_server: str | None = None,
) -> int:
    """`replace_current_state` for what is known to differ: None takes an entry away.

    The other entries are not looked at, so that an event costs the same in a room of any size.
    """
    before = load_entries(connection, room_id, changes)
    changed = {
        key: event_id
        for key, event_id in changes.items()
        if event_id is not None and before.get(key) != event_id
    }
    gone = {key for key, event_id in changes.items() if event_id is None and key in before}
    return _write(connection, room_id, before, changed, gone, instance_name, own_server)


def _write(
    connection: Connection,
    room_id: str,
    before: Mapping[StateKey, str],
    changed: Mapping[StateKey, str],
    gone: Collection[StateKey],
    instance_name: str,
    own_server: str | None,
) -> int:
    if not changed and not gone:
        return 0
    (stream_id,) = next_stream_orderings(connection, 1)
    _write_deltas(connection, room_id, before, changed, gone, stream_id, instance_name)
    table = schema.current_state_events
    replaced = [event_id for key, event_id in before.items() if key in gone or key in changed]
    connection.execute(
        delete(table).where(
            table.c.room_id == room_id, bulk.is_in(connection, table.c.event_id, replaced)
        )
    )
    _insert_entries(connection, room_id, changed.values())
    _update_local_memberships(connection, room_id, changed, gone, own_server)
    return len(changed) + len(gone)


def _write_deltas(
    connection: Connection,
    room_id: str,
    before: Mapping[StateKey, str],
    changed: Mapping[StateKey, str],
    gone: Collection[StateKey],
    stream_id: int,
    instance_name: str,
) -> None:
    """What differs goes to `current_state_delta_stream`."""
    table = schema.current_state_delta_stream
    bulk.insert(
        connection,
        table,
        _DELTA_COLUMNS,
        [
            (stream_id, instance_name, room_id, *key, changed.get(key), before[key])
            for key in (*gone, *(key for key in changed if key in before))
        ],
    )
    # What is new, which may be a whole room, is copied within the database.
    new = [event_id for key, event_id in changed.items() if key not in before]
    state = schema.state_events
    rows = select(
        literal(stream_id),
        literal(instance_name),
        state.c.room_id,
        state.c.type,
        state.c.state_key,
        state.c.event_id,
        null(),
    ).where(state.c.room_id == room_id, bulk.is_in(connection, state.c.event_id, new))
    connection.execute(insert(table).from_select(_DELTA_COLUMNS, rows))


def _insert_entries(connection: Connection, room_id: str, event_ids: Collection[str]) -> None:
    """Makes events current, copying what is repeated of them within the database.

    Raises:
        UnknownEvents: one of them is not stored as a state event of the room.
    """
    events, state, memberships = schema.events, schema.state_events, schema.room_memberships
    rows = (
        select(
            state.c.event_id,
            state.c.room_id,
            state.c.type,
            state.c.state_key,
            memberships.c.membership,
            events.c.stream_ordering,
        )
        .join(events, events.c.event_id == state.c.event_id)
        .outerjoin(memberships, memberships.c.event_id == state.c.event_id)
        .where(state.c.room_id == room_id, bulk.is_in(connection, state.c.event_id, event_ids))
    )
    inserted = connection.execute(
        insert(schema.current_state_events).from_select(_COLUMNS, rows),
        execution_options={"preserve_rowcount": True},
    ).rowcount
    if inserted != len(set(event_ids)):
        known = connection.scalars(select(state.c.event_id).where(state.c.room_id == room_id))
        raise UnknownEvents(room_id, sorted(set(event_ids) - set(known)))


def delete_current_state(connection: Connection, room_id: str, *, instance_name: str) -> int:
    """Forget the current state of a room that no local user is in any more.

    `local_current_membership` stays: it says how the local users left.

    Returns:
        How many entries there were.
    """
    before = load_current_state(connection, room_id)
    if not before:
        return 0
    (stream_id,) = next_stream_orderings(connection, 1)
    bulk.insert(
        connection,
        schema.current_state_delta_stream,
        _DELTA_COLUMNS,
        [
            (stream_id, instance_name, room_id, *key, None, event_id)
            for key, event_id in before.items()
        ],
    )
    connection.execute(
        delete(schema.current_state_events).where(schema.current_state_events.c.room_id == room_id)
    )
    return len(before)


def load_current_state(connection: Connection, room_id: str) -> dict[StateKey, str]:
    """The current state of a room."""
    table = schema.current_state_events
    rows = connection.execute(
        select(table.c.type, table.c.state_key, table.c.event_id).where(table.c.room_id == room_id)
    )
    return {StateKey(type_, state_key): event_id for type_, state_key, event_id in rows}


def load_entries(
    connection: Connection, room_id: str, keys: Collection[StateKey]
) -> dict[StateKey, str]:
    """Some entries of the current state of a room."""
    table = schema.current_state_events
    wanted = {(key[0], key[1]) for key in keys}
    rows = connection.execute(
        select(table.c.type, table.c.state_key, table.c.event_id).where(
            table.c.room_id == room_id,
            bulk.is_in(connection, table.c.type, {key[0] for key in wanted}),
            bulk.is_in(connection, table.c.state_key, {key[1] for key in wanted}),
        )
    )
    return {
        StateKey(type_, state_key): event_id
        for type_, state_key, event_id in rows
        if (type_, state_key) in wanted
    }


def load_entry_of_rooms(
    connection: Connection, room_ids: Collection[str], key: StateKey
) -> dict[str, str]:
    """The event that sets `key` in each of `room_ids` where there is one, by room id."""
    table = schema.current_state_events
    rows = connection.execute(
        select(table.c.room_id, table.c.event_id).where(
            bulk.is_in(connection, table.c.room_id, room_ids),
            table.c.type == key[0],
            table.c.state_key == key[1],
        )
    )
    return {row.room_id: row.event_id for row in rows}


def count_entries(connection: Connection, room_id: str) -> int:
    """How many entries the current state of a room has."""
    table = schema.current_state_events
    query = select(func.count()).select_from(table).where(table.c.room_id == room_id)
    return connection.scalar(query) or 0


def count_members(connection: Connection, room_id: str, membership: str = "join") -> int:
    """How many users have `membership` in the current state of a room."""
    table = schema.current_state_events
    query = (
        select(func.count())
        .select_from(table)
        .where(
            table.c.room_id == room_id,
            table.c.type == MEMBER,
            table.c.membership == membership,
        )
    )
    return connection.scalar(query) or 0


def load_joined_event(connection: Connection, room_id: str, user_id: str) -> str | None:
    """The event by which a local user is joined to the room now; None if they are not."""
    table = schema.local_current_membership
    return connection.scalar(
        select(table.c.event_id).where(
            table.c.room_id == room_id,
            table.c.user_id == user_id,
            table.c.membership == "join",
        )
    )


def load_local_memberships(connection: Connection, room_id: str) -> dict[str, str]:
    """The membership of each local user that ever had one in the room, by user id."""
    table = schema.local_current_membership
    rows = connection.execute(
        select(table.c.user_id, table.c.membership).where(table.c.room_id == room_id)
    )
    return {row.user_id: row.membership for row in rows}


def find_local_joins(connection: Connection, room_id: str, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` by which local users are in the room now."""
    table = schema.local_current_membership
    query = select(table.c.event_id).where(
        table.c.room_id == room_id,
        table.c.membership == "join",
        bulk.is_in(connection, table.c.event_id, event_ids),
    )
    return set(connection.scalars(query))


def _load_details(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> dict[str, _Details]:
    events, memberships = schema.events, schema.room_memberships
    query = (
        select(events.c.event_id, memberships.c.membership, events.c.stream_ordering)
        .outerjoin(memberships, memberships.c.event_id == events.c.event_id)
        .where(events.c.room_id == room_id, bulk.is_in(connection, events.c.event_id, event_ids))
    )
    return {
        event_id: _Details(membership, stream_ordering)
        for event_id, membership, stream_ordering in connection.execute(query)
    }


def _update_local_memberships(
    connection: Connection,
    room_id: str,
    changed: Mapping[StateKey, str],
    gone: Collection[StateKey],
    own_server: str | None,
) -> None:
    table = schema.local_current_membership
    servers = {own_server}
    if own_server is None:
        known = load_local_memberships(connection, room_id)
        servers = {_server_of(user_id) for user_id in known}
    touched = [
        key.state_key
        for key in (*changed, *gone)
        if key.type == MEMBER and _server_of(key.state_key) in servers
    ]
    connection.execute(
        delete(table).where(
            table.c.room_id == room_id, bulk.is_in(connection, table.c.user_id, touched)
        )
    )
    current = {
        user_id: changed[StateKey(MEMBER, user_id)]
        for user_id in touched
        if StateKey(MEMBER, user_id) in changed
    }
    details = _load_details(connection, room_id, current.values())
    rows = [
        (room_id, user_id, event_id, *details[event_id])
        for user_id, event_id in current.items()
        if details[event_id].membership is not None
    ]
    bulk.insert(connection, table, _LOCAL_COLUMNS, rows)


def _server_of(user_id: str) -> str | None:
    return user_id.partition(":")[2] or None
