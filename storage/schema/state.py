"""The state of rooms: state groups and the current state."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from storage.schema.base import metadata, not_valid_foreign_key, partial_index
from storage.schema.events import events

state_groups = Table(
    "state_groups",
    metadata,
    Column("id", BigInteger, nullable=False, autoincrement=False),
    Column("room_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    PrimaryKeyConstraint("id", name="state_groups_pkey"),
    Index("state_groups_room_id_idx", "room_id"),
)
"""A state of a room, stored as a difference from another group or in full."""

state_groups_state = Table(
    "state_groups_state",
    metadata,
    Column("state_group", BigInteger, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state_key", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Index("state_groups_state_type_idx", "state_group", "type", "state_key"),
)
"""The entries in which a state group differs from its previous group."""

state_group_edges = Table(
    "state_group_edges",
    metadata,
    Column("state_group", BigInteger, nullable=False),
    Column("prev_state_group", BigInteger, nullable=False),
    Index("state_group_edges_prev_idx", "prev_state_group"),
    Index("state_group_edges_unique_idx", "state_group", "prev_state_group", unique=True),
)
"""The previous group of a state group; without a row here a group is stored in full."""

event_to_state_groups = Table(
    "event_to_state_groups",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("state_group", BigInteger, nullable=False),
    UniqueConstraint("event_id", name="event_to_state_groups_event_id_key"),
    Index("event_to_state_groups_sg_index", "state_group"),
)
"""The state group after each event, which a message or a rejected event leaves as it was."""

current_state_events = Table(
    "current_state_events",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state_key", Text, nullable=False),
    Column("membership", Text),
    Column("event_stream_ordering", BigInteger),
    UniqueConstraint("event_id", name="current_state_events_event_id_key"),
    UniqueConstraint(
        "room_id", "type", "state_key", name="current_state_events_room_id_type_state_key_key"
    ),
    partial_index("current_state_events_member_index", "state_key", where="type = 'm.room.member'"),
)
"""The current state of each room."""
not_valid_foreign_key(
    current_state_events.c.event_stream_ordering,
    events.c.stream_ordering,
    name="event_stream_ordering_fkey",
)

current_state_delta_stream = Table(
    "current_state_delta_stream",
    metadata,
    Column("stream_id", BigInteger, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state_key", Text, nullable=False),
    Column("event_id", Text),
    Column("prev_event_id", Text),
    Column("instance_name", Text),
    Index("current_state_delta_stream_idx", "stream_id"),
)
"""Changes of the current state, as a stream."""

local_current_membership = Table(
    "local_current_membership",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("membership", Text, nullable=False),
    Column("event_stream_ordering", BigInteger),
    Index("local_current_membership_idx", "user_id", "room_id", unique=True),
    Index("local_current_membership_room_idx", "room_id"),
)
"""The membership of each local user in each room."""
not_valid_foreign_key(
    local_current_membership.c.event_stream_ordering,
    events.c.stream_ordering,
    name="event_stream_ordering_fkey",
)
