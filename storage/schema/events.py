"""Events and their graph."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

from storage.schema.base import ROW_ID, metadata, not_valid_foreign_key, partial_index

rooms = Table(
    "rooms",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("is_public", Boolean),
    Column("creator", Text),
    Column("room_version", Text),
    Column("has_auth_chain_index", Boolean),
    PrimaryKeyConstraint("room_id", name="rooms_pkey"),
    Index("public_room_index", "is_public"),
)
"""Every room this server knows, with its version."""

events = Table(
    "events",
    metadata,
    Column("topological_ordering", BigInteger, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("content", Text),
    Column("unrecognized_keys", Text),
    Column("processed", Boolean, nullable=False),
    Column("outlier", Boolean, nullable=False),
    Column("depth", BigInteger, nullable=False, server_default=text("0")),
    Column("origin_server_ts", BigInteger),
    Column("received_ts", BigInteger),
    Column("sender", Text),
    Column("contains_url", Boolean),
    Column("instance_name", Text),
    Column("stream_ordering", ROW_ID, autoincrement=False, nullable=True),
    Column("state_key", Text),
    Column("rejection_reason", Text),
    UniqueConstraint("event_id", name="events_event_id_key"),
    partial_index(
        "event_contains_url_index",
        "room_id",
        "topological_ordering",
        "stream_ordering",
        where="contains_url = true AND outlier = false",
    ),
    Index("events_order_room", "room_id", "topological_ordering", "stream_ordering"),
    Index("events_room_stream", "room_id", "stream_ordering"),
    # SQLite: the row id itself; PostgreSQL: a unique index, as below.
    PrimaryKeyConstraint("stream_ordering", name="events_pkey").ddl_if(dialect="sqlite"),
    Index("events_ts", "origin_server_ts", "stream_ordering"),
)
"""One row per event; an outlier is an event whose place in the graph is not known."""
Index("events_stream_ordering", events.c.stream_ordering, unique=True).ddl_if(dialect="postgresql")

event_json = Table(
    "event_json",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("internal_metadata", Text, nullable=False),
    Column("json", Text, nullable=False),
    Column("format_version", Integer),
    UniqueConstraint("event_id", name="event_json_event_id_key"),
)
"""The PDU as JSON text."""

event_edges = Table(
    "event_edges",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("prev_event_id", Text, nullable=False),
    Column("room_id", Text),
    Column("is_state", Boolean, nullable=False, server_default=false()),
    ForeignKeyConstraint(["event_id"], ["events.event_id"], name="event_edges_event_id_fkey"),
    Index("ev_edges_prev_id", "prev_event_id"),
    Index("event_edges_event_id_prev_event_id_idx", "event_id", "prev_event_id", unique=True),
)
"""`prev_events` of every event that is not an outlier."""

event_auth = Table(
    "event_auth",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("auth_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Index("evauth_edges_id", "event_id"),
)
"""`auth_events` of state events."""

state_events = Table(
    "state_events",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state_key", Text, nullable=False),
    Column("prev_state", Text),
    UniqueConstraint("event_id", name="state_events_event_id_key"),
)
"""The state key of every state event, accepted or not."""

room_memberships = Table(
    "room_memberships",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("membership", Text, nullable=False),
    Column("forgotten", Integer, server_default=text("0")),
    Column("display_name", Text),
    Column("avatar_url", Text),
    Column("event_stream_ordering", BigInteger),
    Column("participant", Boolean, server_default=false()),
    UniqueConstraint("event_id", name="room_memberships_event_id_key"),
    Index("room_memberships_room_id", "room_id"),
    Index("room_memberships_user_id", "user_id"),
    partial_index(
        "room_memberships_user_room_forgotten", "user_id", "room_id", where="forgotten = 1"
    ),
)
"""The membership in every accepted `m.room.member` event."""
not_valid_foreign_key(
    room_memberships.c.event_stream_ordering,
    events.c.stream_ordering,
    name="event_stream_ordering_fkey",
)

redactions = Table(
    "redactions",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("redacts", Text, nullable=False),
    Column("have_censored", Boolean, nullable=False, server_default=false()),
    Column("received_ts", BigInteger),
    Column("recheck", Boolean, nullable=False, server_default=true()),
    UniqueConstraint("event_id", name="redactions_event_id_key"),
    partial_index("redactions_have_censored_ts", "received_ts", where="NOT have_censored"),
    Index("redactions_redacts", "redacts"),
)
"""Which event redacts which."""

rejections = Table(
    "rejections",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("last_check", Text, nullable=False),
    UniqueConstraint("event_id", name="rejections_event_id_key"),
)
"""Events that failed an auth check, and why."""

event_forward_extremities = Table(
    "event_forward_extremities",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    UniqueConstraint("event_id", "room_id", name="event_forward_extremities_event_id_room_id_key"),
    Index("ev_extrem_id", "event_id"),
    Index("ev_extrem_room", "room_id"),
)
"""Events that no accepted event follows yet."""
not_valid_foreign_key(
    event_forward_extremities.c.event_id,
    events.c.event_id,
    name="event_forward_extremities_event_id",
    deferred=True,
)

event_backward_extremities = Table(
    "event_backward_extremities",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    UniqueConstraint("event_id", "room_id", name="event_backward_extremities_event_id_room_id_key"),
    Index("ev_b_extrem_id", "event_id"),
    Index("ev_b_extrem_room", "room_id"),
)
"""Events that are referred to and not known."""

room_depth = Table(
    "room_depth",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("min_depth", BigInteger),
    UniqueConstraint("room_id", name="room_depth_room_id_key"),
)
"""The smallest depth known in a room."""

event_auth_chains = Table(
    "event_auth_chains",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("sequence_number", BigInteger, nullable=False),
    PrimaryKeyConstraint("event_id", name="event_auth_chains_pkey"),
    Index("event_auth_chains_c_seq_index", "chain_id", "sequence_number", unique=True),
)
"""Synapse's chain cover of the auth graph."""

event_auth_chain_links = Table(
    "event_auth_chain_links",
    metadata,
    Column("origin_chain_id", BigInteger, nullable=False),
    Column("origin_sequence_number", BigInteger, nullable=False),
    Column("target_chain_id", BigInteger, nullable=False),
    Column("target_sequence_number", BigInteger, nullable=False),
    Index("event_auth_chain_links_idx", "origin_chain_id", "target_chain_id"),
)
"""Links between the chains of the chain cover."""

event_auth_chain_to_calculate = Table(
    "event_auth_chain_to_calculate",
    metadata,
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state_key", Text, nullable=False),
    PrimaryKeyConstraint("event_id", name="event_auth_chain_to_calculate_pkey"),
    Index("event_auth_chain_to_calculate_rm_id", "room_id"),
)
"""Events that are not yet in the chain cover."""

event_failed_pull_attempts = Table(
    "event_failed_pull_attempts",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("num_attempts", Integer, nullable=False),
    Column("last_attempt_ts", BigInteger, nullable=False),
    Column("last_cause", Text, nullable=False),
    PrimaryKeyConstraint("room_id", "event_id", name="event_failed_pull_attempts_pkey"),
    ForeignKeyConstraint(
        ["room_id"], ["rooms.room_id"], name="event_failed_pull_attempts_room_id_fkey"
    ),
    Index("event_failed_pull_attempts_room_id", "room_id"),
)
"""Events that could not be fetched, and how often that was tried."""

federation_inbound_events_staging = Table(
    "federation_inbound_events_staging",
    metadata,
    Column("origin", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("received_ts", BigInteger, nullable=False),
    Column("event_json", Text, nullable=False),
    Column("internal_metadata", Text, nullable=False),
    Index("federation_inbound_events_staging_instance_event", "origin", "event_id", unique=True),
    Index("federation_inbound_events_staging_room", "room_id", "received_ts"),
)
"""Events received over federation that are not yet processed."""
