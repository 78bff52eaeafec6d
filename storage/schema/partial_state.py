"""Rooms and events in partial state, and the streams that tell when they no longer are."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from storage.schema.base import metadata

partial_state_rooms = Table(
    "partial_state_rooms",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("device_lists_stream_id", BigInteger, nullable=False, server_default=text("0")),
    Column("join_event_id", Text),
    Column("joined_via", Text),
    PrimaryKeyConstraint("room_id", name="partial_state_rooms_pkey"),
    ForeignKeyConstraint(["room_id"], ["rooms.room_id"], name="partial_state_rooms_room_id_fkey"),
    ForeignKeyConstraint(
        ["join_event_id"], ["events.event_id"], name="partial_state_rooms_join_event_id_fkey"
    ),
)
"""Rooms in partial state (MSC3706). A row is deleted when the room is fully stated."""

partial_state_rooms_servers = Table(
    "partial_state_rooms_servers",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("server_name", Text, nullable=False),
    UniqueConstraint(
        "room_id", "server_name", name="partial_state_rooms_servers_room_id_server_name_key"
    ),
    ForeignKeyConstraint(
        ["room_id"],
        ["partial_state_rooms.room_id"],
        name="partial_state_rooms_servers_room_id_fkey",
    ),
)
"""The servers in the room according to the answer to `/send_join`."""

partial_state_events = Table(
    "partial_state_events",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    UniqueConstraint("event_id", name="partial_state_events_event_id_key"),
    ForeignKeyConstraint(
        ["event_id"], ["events.event_id"], name="partial_state_events_event_id_fkey"
    ),
    ForeignKeyConstraint(
        ["room_id"], ["partial_state_rooms.room_id"], name="partial_state_events_room_id_fkey"
    ),
    Index("partial_state_events_room_id_idx", "room_id"),
)
"""Events whose state is partial. Its foreign key keeps the room partial while one is left."""

un_partial_stated_room_stream = Table(
    "un_partial_stated_room_stream",
    metadata,
    Column("stream_id", BigInteger, nullable=False, autoincrement=False),
    Column("instance_name", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    PrimaryKeyConstraint("stream_id", name="un_partial_stated_room_stream_pkey"),
    ForeignKeyConstraint(
        ["room_id"],
        ["rooms.room_id"],
        name="un_partial_stated_room_stream_room_id_fkey",
        ondelete="CASCADE",
    ),
    Index("un_partial_stated_room_stream_room_id", "room_id"),
)
"""Rooms that became fully stated, as a stream."""

un_partial_stated_event_stream = Table(
    "un_partial_stated_event_stream",
    metadata,
    Column("stream_id", BigInteger, nullable=False, autoincrement=False),
    Column("instance_name", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("rejection_status_changed", Boolean, nullable=False),
    PrimaryKeyConstraint("stream_id", name="un_partial_stated_event_stream_pkey"),
    ForeignKeyConstraint(
        ["event_id"],
        ["events.event_id"],
        name="un_partial_stated_event_stream_event_id_fkey",
        ondelete="CASCADE",
    ),
    Index("un_partial_stated_event_stream_room_id", "event_id", unique=True),
)
"""Events that became fully stated, as a stream."""
