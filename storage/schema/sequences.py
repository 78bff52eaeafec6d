"""The sequences that ids come from. PostgreSQL only: SQLite has one writer and takes max + 1."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, Sequence

from storage.schema.base import after_create, metadata

STREAM_SEQUENCES = (
    "account_data_sequence",
    "cache_invalidation_stream_seq",
    "device_inbox_sequence",
    "device_lists_sequence",
    "e2e_cross_signing_keys_sequence",
    "events_backfill_stream_seq",
    "events_stream_seq",
    "presence_stream_sequence",
    "profile_updates_sequence",
    "push_rules_stream_sequence",
    "pushers_sequence",
    "quarantined_media_id_seq",
    "receipts_sequence",
    "sticky_events_sequence",
    "un_partial_stated_event_stream_sequence",
    "un_partial_stated_room_stream_sequence",
)
"""Stream ids. Position 1 means "nothing yet", so that the first id is 2."""

ID_SEQUENCES = (
    "application_services_txn_id_seq",
    "event_auth_chain_id",
    "sliding_sync_connection_positions_connection_position_seq",
    "sliding_sync_connection_required_state_required_state_id_seq",
    "sliding_sync_connections_connection_key_seq",
    "state_group_id_seq",
    "state_groups_pending_deletion_sequence_number_seq",
    "user_id_seq",
)
"""Other ids: the first one is 1."""

for _name in (*STREAM_SEQUENCES, *ID_SEQUENCES):
    Sequence(_name, start=1, data_type=BigInteger(), metadata=metadata)
Sequence("instance_map_instance_id_seq", start=1, data_type=Integer(), metadata=metadata)
Sequence("thread_subscriptions_sequence", start=2, data_type=BigInteger(), metadata=metadata)

for _name in STREAM_SEQUENCES:
    after_create(metadata, "postgresql", f"SELECT setval('{_name}', 1, true)")
