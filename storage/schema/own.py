"""Tables of this project that Synapse does not have. Their names begin with `resync_`.

None of them refers to Synapse's tables by a foreign key: Synapse purges rooms without knowing
of them.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from storage.schema.base import metadata, partial_index

resync_jobs = Table(
    "resync_jobs",
    metadata,
    Column("room_id", Text, nullable=False),
    Column("room_version", Text),
    Column("joined_via", Text),
    Column("join_event_id", Text),
    Column("created_ts", BigInteger, nullable=False),
    Column("updated_ts", BigInteger, nullable=False),
    Column("completed_ts", BigInteger),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_attempt_ts", BigInteger, nullable=False),
    Column("last_error", Text),
    Column("last_error_server", Text),
    Column("phase", Text),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    Column("total", BigInteger),
    Column("given_up", JSON, nullable=False, server_default=text("'[]'")),
    Column("uncheckable_attempts", Integer, nullable=False, server_default=text("0")),
    Column("unknown_parent_attempts", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("room_id", name="resync_jobs_pkey"),
    Index("resync_jobs_created", "created_ts", "room_id"),
    partial_index("resync_jobs_due", "next_attempt_ts", where="completed_ts IS NULL"),
)
"""One row per room that was ever partially joined here. Times in ms.

`attempts` counts the failures in a row, `uncheckable_attempts` those for events that may pass the
checks later, `unknown_parent_attempts` those for parents that no server knew, `given_up` lists the
event ids that no server delivered, `total` is NULL while it is not known how much there is to do.
"""

resync_received_transactions = Table(
    "resync_received_transactions",
    metadata,
    Column("origin", Text, nullable=False),
    Column("transaction_id", Text, nullable=False),
    Column("received_ts", BigInteger, nullable=False),
    Column("response", Text, nullable=False),
    PrimaryKeyConstraint("origin", "transaction_id", name="resync_received_transactions_pkey"),
    Index("resync_received_transactions_ts", "received_ts"),
)
"""Transactions that other servers sent us, with what we answered, so that they can be repeated."""

resync_outgoing_events = Table(
    "resync_outgoing_events",
    metadata,
    Column("destination", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("stream_ordering", BigInteger, nullable=False),
    Column("queued_ts", BigInteger, nullable=False),
    PrimaryKeyConstraint("destination", "event_id", name="resync_outgoing_events_pkey"),
    Index("resync_outgoing_events_order", "destination", "stream_ordering"),
)
"""Events of ours that a server has not confirmed yet, sent in the order of their stream."""
