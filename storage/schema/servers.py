"""Other servers and other processes: keys, retry schedule, device lists, streams, locks."""

from __future__ import annotations

from sqlalchemy import (
    CHAR,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from storage.schema.base import TEXT_ARRAY, metadata, partial_index

destinations = Table(
    "destinations",
    metadata,
    Column("destination", Text, nullable=False),
    Column("retry_last_ts", BigInteger),
    Column("retry_interval", BigInteger),
    Column("failure_ts", BigInteger),
    Column("last_successful_stream_ordering", BigInteger),
    PrimaryKeyConstraint("destination", name="destinations_pkey"),
)
"""Retry schedule of each remote server. Times in ms."""

server_signature_keys = Table(
    "server_signature_keys",
    metadata,
    Column("server_name", Text),
    Column("key_id", Text),
    Column("from_server", Text),
    Column("ts_added_ms", BigInteger),
    Column("verify_key", LargeBinary),
    Column("ts_valid_until_ms", BigInteger),
    UniqueConstraint("server_name", "key_id", name="server_signature_keys_server_name_key_id_key"),
)
"""Signing keys of other servers, as the keys themselves."""

server_keys_json = Table(
    "server_keys_json",
    metadata,
    Column("server_name", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("from_server", Text, nullable=False),
    Column("ts_added_ms", BigInteger, nullable=False),
    Column("ts_valid_until_ms", BigInteger, nullable=False),
    Column("key_json", LargeBinary, nullable=False),
    UniqueConstraint("server_name", "key_id", "from_server", name="server_keys_json_uniqueness"),
)
"""Signing keys of other servers, as the signed JSON they came in."""

device_lists_changes_in_room = Table(
    "device_lists_changes_in_room",
    metadata,
    Column("user_id", Text, nullable=False),
    Column("device_id", Text, nullable=False),
    Column("room_id", Text, nullable=False),
    Column("stream_id", BigInteger, nullable=False),
    Column("converted_to_destinations", Boolean, nullable=False),
    Column("opentracing_context", Text),
    Column("instance_name", Text),
    Column("inserted_ts", BigInteger),
    Index("device_lists_changes_in_stream_id", "stream_id", "room_id", unique=True),
    partial_index(
        "device_lists_changes_in_stream_id_unconverted",
        "stream_id",
        where="NOT converted_to_destinations",
    ),
    Index("device_lists_changes_in_room_by_room_idx", "room_id", "stream_id"),
)
"""Changes of device lists that still have to go to the servers of a room."""

device_lists_outbound_pokes = Table(
    "device_lists_outbound_pokes",
    metadata,
    Column("destination", Text, nullable=False),
    Column("stream_id", BigInteger, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("device_id", Text, nullable=False),
    Column("sent", Boolean, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("opentracing_context", Text),
    Column("instance_name", Text),
    Index("device_lists_outbound_pokes_id", "destination", "stream_id"),
    Index("device_lists_outbound_pokes_stream", "stream_id"),
    Index("device_lists_outbound_pokes_user", "destination", "user_id"),
)
"""Changes of device lists for one server each."""

device_lists_remote_pending = Table(
    "device_lists_remote_pending",
    metadata,
    Column("stream_id", BigInteger, nullable=False, autoincrement=False),
    Column("user_id", Text, nullable=False),
    Column("device_id", Text, nullable=False),
    Column("instance_name", Text),
    PrimaryKeyConstraint("stream_id", name="device_lists_remote_pending_pkey"),
    Index("device_lists_remote_pending_user_device_id", "user_id", "device_id", unique=True),
)
"""Device lists of remote users that have to be fetched again."""

cache_invalidation_stream_by_instance = Table(
    "cache_invalidation_stream_by_instance",
    metadata,
    Column("stream_id", BigInteger, nullable=False),
    Column("instance_name", Text, nullable=False),
    Column("cache_func", Text, nullable=False),
    Column("keys", TEXT_ARRAY),
    Column("invalidation_ts", BigInteger),
    Index("cache_invalidation_stream_by_instance_id", "stream_id", unique=True),
    Index("cache_invalidation_stream_by_instance_instance_index", "instance_name", "stream_id"),
)
"""What other processes must drop from their caches, as a stream."""

stream_positions = Table(
    "stream_positions",
    metadata,
    Column("stream_name", Text, nullable=False),
    Column("instance_name", Text, nullable=False),
    Column("stream_id", BigInteger, nullable=False),
    Index("stream_positions_idx", "stream_name", "instance_name", unique=True),
)
"""How far each writer of a stream has got."""

worker_locks = Table(
    "worker_locks",
    metadata,
    Column("lock_name", Text, nullable=False),
    Column("lock_key", Text, nullable=False),
    Column("instance_name", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("last_renewed_ts", BigInteger, nullable=False),
    Index("worker_locks_key", "lock_name", "lock_key", unique=True),
)
"""Leases. `last_renewed_ts` in ms."""

worker_read_write_locks_mode = Table(
    "worker_read_write_locks_mode",
    metadata,
    Column("lock_name", Text, nullable=False),
    Column("lock_key", Text, nullable=False),
    Column("write_lock", Boolean, nullable=False),
    Column("token", Text, nullable=False),
    ForeignKeyConstraint(
        ["lock_name", "lock_key", "token"],
        [
            "worker_read_write_locks.lock_name",
            "worker_read_write_locks.lock_key",
            "worker_read_write_locks.token",
        ],
        name="worker_read_write_locks_mode_foreign",
        deferrable=True,
        initially="DEFERRED",
        # The two tables refer to each other, which SQLite cannot be told afterwards.
        use_alter=True,
    ).ddl_if(dialect="postgresql"),
    Index("worker_read_write_locks_mode_key", "lock_name", "lock_key", unique=True),
    Index("worker_read_write_locks_mode_type", "lock_name", "lock_key", "write_lock", unique=True),
)
"""Whether a lock is held for reading or for writing."""

worker_read_write_locks = Table(
    "worker_read_write_locks",
    metadata,
    Column("lock_name", Text, nullable=False),
    Column("lock_key", Text, nullable=False),
    Column("instance_name", Text, nullable=False),
    Column("write_lock", Boolean, nullable=False),
    Column("token", Text, nullable=False),
    Column("last_renewed_ts", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["lock_name", "lock_key", "write_lock"],
        [
            "worker_read_write_locks_mode.lock_name",
            "worker_read_write_locks_mode.lock_key",
            "worker_read_write_locks_mode.write_lock",
        ],
        name="worker_read_write_locks_lock_name_lock_key_write_lock_fkey",
    ),
    Index("worker_read_write_locks_key", "lock_name", "lock_key", "token", unique=True),
    partial_index(
        "worker_read_write_locks_write", "lock_name", "lock_key", unique=True, where="write_lock"
    ),
)
"""Who holds a lock for reading or writing."""

schema_version = Table(
    "schema_version",
    metadata,
    Column("lock", CHAR(1), nullable=False, server_default="X"),
    Column("version", Integer, nullable=False),
    Column("upgraded", Boolean, nullable=False),
    CheckConstraint("lock = 'X'", name="schema_version_lock_check"),
    UniqueConstraint("lock", name="schema_version_lock_key"),
)
"""The version of Synapse's schema that these tables follow. One row."""
