"""Leaving a room for good: ending its partial state, and purging everything that is known of it."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from storage import bulk, current_state, jobs, partial_state
from storage.leases import LOCK_NAME
from storage.schema import (
    event_backward_extremities,
    event_edges,
    event_forward_extremities,
    event_json,
    event_to_state_groups,
    events,
    metadata,
    partial_state_events,
    state_group_edges,
    state_groups,
    worker_locks,
)

OUTLIER_METADATA = '{"outlier":true}'

_KEYED_BY_EVENT = (
    "event_edges",
    "event_auth_chain_links",
    "event_auth_chains",
    "event_to_state_groups",
    "redactions",
    "rejections",
    "un_partial_stated_event_stream",
)
"""Tables of events that do not name the room."""


def abandon_partial_room(connection: Connection, room_id: str, *, instance_name: str) -> None:
    """End the partial state of a room that no local user is in any more.

    What was only approximately known is not kept as if it were known: events with partial state
    become outliers, and the room has no current state and no extremities until it is joined
    again. Whoever is resyncing the room loses the lease.

    Raises:
        RoomNotPartial: the room is fully stated.
    """
    connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == LOCK_NAME, worker_locks.c.lock_key == room_id
        )
    )
    partial = list(
        connection.scalars(
            select(partial_state_events.c.event_id).where(partial_state_events.c.room_id == room_id)
        )
    )
    partial_state.delete_partial_room(connection, room_id)
    jobs.delete_job(connection, room_id)
    for table in (event_forward_extremities, event_backward_extremities):
        connection.execute(delete(table).where(table.c.room_id == room_id))
    for table in (event_edges, event_to_state_groups):
        connection.execute(delete(table).where(bulk.is_in(connection, table.c.event_id, partial)))
    connection.execute(
        update(events)
        .where(bulk.is_in(connection, events.c.event_id, partial))
        .values(outlier=True)
    )
    connection.execute(
        update(event_json)
        .where(bulk.is_in(connection, event_json.c.event_id, partial))
        .values(internal_metadata=OUTLIER_METADATA)
    )
    current_state.delete_current_state(connection, room_id, instance_name=instance_name)


def purge_room(connection: Connection, room_id: str) -> bool:
    """Delete every row about a room; False: there was none.

    A resync of it loses the lease, and everybody forgets what it had to send.
    """
    connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == LOCK_NAME, worker_locks.c.lock_key == room_id
        )
    )
    in_room = select(events.c.event_id).where(events.c.room_id == room_id)
    for name in _KEYED_BY_EVENT:
        table = metadata.tables[name]
        column = table.c.origin_chain_id if name == "event_auth_chain_links" else table.c.event_id
        if name == "event_auth_chain_links":
            chains = metadata.tables["event_auth_chains"]
            wanted = select(chains.c.chain_id).where(chains.c.event_id.in_(in_room))
            connection.execute(delete(table).where(column.in_(wanted)))
        else:
            connection.execute(delete(table).where(column.in_(in_room)))
    groups = select(state_groups.c.id).where(state_groups.c.room_id == room_id)
    connection.execute(delete(state_group_edges).where(state_group_edges.c.state_group.in_(groups)))
    deleted = 0
    # Tables that refer to others come before those: the last one is that of the rooms.
    for table in reversed(metadata.sorted_tables):
        if "room_id" in table.c:
            deleted += connection.execute(delete(table).where(table.c.room_id == room_id)).rowcount
    return deleted > 0
