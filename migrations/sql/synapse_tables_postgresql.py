# ruff: noqa: E501
"""Migration 0001 on PostgreSQL: statements, with an empty line between them."""

STATEMENTS = """\
CREATE SEQUENCE account_data_sequence AS BIGINT START WITH 1

CREATE SEQUENCE cache_invalidation_stream_seq AS BIGINT START WITH 1

CREATE SEQUENCE device_inbox_sequence AS BIGINT START WITH 1

CREATE SEQUENCE device_lists_sequence AS BIGINT START WITH 1

CREATE SEQUENCE e2e_cross_signing_keys_sequence AS BIGINT START WITH 1

CREATE SEQUENCE events_backfill_stream_seq AS BIGINT START WITH 1

CREATE SEQUENCE events_stream_seq AS BIGINT START WITH 1

CREATE SEQUENCE presence_stream_sequence AS BIGINT START WITH 1

CREATE SEQUENCE profile_updates_sequence AS BIGINT START WITH 1

CREATE SEQUENCE push_rules_stream_sequence AS BIGINT START WITH 1

CREATE SEQUENCE pushers_sequence AS BIGINT START WITH 1

CREATE SEQUENCE quarantined_media_id_seq AS BIGINT START WITH 1

CREATE SEQUENCE receipts_sequence AS BIGINT START WITH 1

CREATE SEQUENCE sticky_events_sequence AS BIGINT START WITH 1

CREATE SEQUENCE un_partial_stated_event_stream_sequence AS BIGINT START WITH 1

CREATE SEQUENCE un_partial_stated_room_stream_sequence AS BIGINT START WITH 1

CREATE SEQUENCE application_services_txn_id_seq AS BIGINT START WITH 1

CREATE SEQUENCE event_auth_chain_id AS BIGINT START WITH 1

CREATE SEQUENCE sliding_sync_connection_positions_connection_position_seq AS BIGINT START WITH 1

CREATE SEQUENCE sliding_sync_connection_required_state_required_state_id_seq AS BIGINT START WITH 1

CREATE SEQUENCE sliding_sync_connections_connection_key_seq AS BIGINT START WITH 1

CREATE SEQUENCE state_group_id_seq AS BIGINT START WITH 1

CREATE SEQUENCE state_groups_pending_deletion_sequence_number_seq AS BIGINT START WITH 1

CREATE SEQUENCE user_id_seq AS BIGINT START WITH 1

CREATE SEQUENCE instance_map_instance_id_seq AS INTEGER START WITH 1

CREATE SEQUENCE thread_subscriptions_sequence AS BIGINT START WITH 2

CREATE TABLE rooms (
    room_id TEXT NOT NULL,
    is_public BOOLEAN,
    creator TEXT,
    room_version TEXT,
    has_auth_chain_index BOOLEAN,
    CONSTRAINT rooms_pkey PRIMARY KEY (room_id)
)

CREATE INDEX public_room_index ON rooms (is_public)

CREATE TABLE events (
    topological_ordering BIGINT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    room_id TEXT NOT NULL,
    content TEXT,
    unrecognized_keys TEXT,
    processed BOOLEAN NOT NULL,
    outlier BOOLEAN NOT NULL,
    depth BIGINT DEFAULT 0 NOT NULL,
    origin_server_ts BIGINT,
    received_ts BIGINT,
    sender TEXT,
    contains_url BOOLEAN,
    instance_name TEXT,
    stream_ordering BIGINT,
    state_key TEXT,
    rejection_reason TEXT,
    CONSTRAINT events_event_id_key UNIQUE (event_id)
)

CREATE INDEX events_ts ON events (origin_server_ts, stream_ordering)

CREATE UNIQUE INDEX events_stream_ordering ON events (stream_ordering)

CREATE INDEX event_contains_url_index ON events (room_id, topological_ordering, stream_ordering) WHERE contains_url = true AND outlier = false

CREATE INDEX events_room_stream ON events (room_id, stream_ordering)

CREATE INDEX events_order_room ON events (room_id, topological_ordering, stream_ordering)

CREATE TABLE event_json (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    internal_metadata TEXT NOT NULL,
    json TEXT NOT NULL,
    format_version INTEGER,
    CONSTRAINT event_json_event_id_key UNIQUE (event_id)
)

CREATE TABLE event_auth (
    event_id TEXT NOT NULL,
    auth_id TEXT NOT NULL,
    room_id TEXT NOT NULL
)

CREATE INDEX evauth_edges_id ON event_auth (event_id)

CREATE TABLE state_events (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    type TEXT NOT NULL,
    state_key TEXT NOT NULL,
    prev_state TEXT,
    CONSTRAINT state_events_event_id_key UNIQUE (event_id)
)

CREATE TABLE redactions (
    event_id TEXT NOT NULL,
    redacts TEXT NOT NULL,
    have_censored BOOLEAN DEFAULT false NOT NULL,
    received_ts BIGINT,
    recheck BOOLEAN DEFAULT true NOT NULL,
    CONSTRAINT redactions_event_id_key UNIQUE (event_id)
)

CREATE INDEX redactions_have_censored_ts ON redactions (received_ts) WHERE NOT have_censored

CREATE INDEX redactions_redacts ON redactions (redacts)

CREATE TABLE rejections (
    event_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    last_check TEXT NOT NULL,
    CONSTRAINT rejections_event_id_key UNIQUE (event_id)
)

CREATE TABLE event_backward_extremities (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    CONSTRAINT event_backward_extremities_event_id_room_id_key UNIQUE (event_id, room_id)
)

CREATE INDEX ev_b_extrem_room ON event_backward_extremities (room_id)

CREATE INDEX ev_b_extrem_id ON event_backward_extremities (event_id)

CREATE TABLE room_depth (
    room_id TEXT NOT NULL,
    min_depth BIGINT,
    CONSTRAINT room_depth_room_id_key UNIQUE (room_id)
)

CREATE TABLE event_auth_chains (
    event_id TEXT NOT NULL,
    chain_id BIGINT NOT NULL,
    sequence_number BIGINT NOT NULL,
    CONSTRAINT event_auth_chains_pkey PRIMARY KEY (event_id)
)

CREATE UNIQUE INDEX event_auth_chains_c_seq_index ON event_auth_chains (chain_id, sequence_number)

CREATE TABLE event_auth_chain_links (
    origin_chain_id BIGINT NOT NULL,
    origin_sequence_number BIGINT NOT NULL,
    target_chain_id BIGINT NOT NULL,
    target_sequence_number BIGINT NOT NULL
)

CREATE INDEX event_auth_chain_links_idx ON event_auth_chain_links (origin_chain_id, target_chain_id)

CREATE TABLE event_auth_chain_to_calculate (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    type TEXT NOT NULL,
    state_key TEXT NOT NULL,
    CONSTRAINT event_auth_chain_to_calculate_pkey PRIMARY KEY (event_id)
)

CREATE INDEX event_auth_chain_to_calculate_rm_id ON event_auth_chain_to_calculate (room_id)

CREATE TABLE federation_inbound_events_staging (
    origin TEXT NOT NULL,
    room_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    received_ts BIGINT NOT NULL,
    event_json TEXT NOT NULL,
    internal_metadata TEXT NOT NULL
)

CREATE UNIQUE INDEX federation_inbound_events_staging_instance_event ON federation_inbound_events_staging (origin, event_id)

CREATE INDEX federation_inbound_events_staging_room ON federation_inbound_events_staging (room_id, received_ts)

CREATE TABLE destinations (
    destination TEXT NOT NULL,
    retry_last_ts BIGINT,
    retry_interval BIGINT,
    failure_ts BIGINT,
    last_successful_stream_ordering BIGINT,
    CONSTRAINT destinations_pkey PRIMARY KEY (destination)
)

CREATE TABLE server_signature_keys (
    server_name TEXT,
    key_id TEXT,
    from_server TEXT,
    ts_added_ms BIGINT,
    verify_key BYTEA,
    ts_valid_until_ms BIGINT,
    CONSTRAINT server_signature_keys_server_name_key_id_key UNIQUE (server_name, key_id)
)

CREATE TABLE server_keys_json (
    server_name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    from_server TEXT NOT NULL,
    ts_added_ms BIGINT NOT NULL,
    ts_valid_until_ms BIGINT NOT NULL,
    key_json BYTEA NOT NULL,
    CONSTRAINT server_keys_json_uniqueness UNIQUE (server_name, key_id, from_server)
)

CREATE TABLE device_lists_changes_in_room (
    user_id TEXT NOT NULL,
    device_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    stream_id BIGINT NOT NULL,
    converted_to_destinations BOOLEAN NOT NULL,
    opentracing_context TEXT,
    instance_name TEXT,
    inserted_ts BIGINT
)

CREATE UNIQUE INDEX device_lists_changes_in_stream_id ON device_lists_changes_in_room (stream_id, room_id)

CREATE INDEX device_lists_changes_in_room_by_room_idx ON device_lists_changes_in_room (room_id, stream_id)

CREATE INDEX device_lists_changes_in_stream_id_unconverted ON device_lists_changes_in_room (stream_id) WHERE NOT converted_to_destinations

CREATE TABLE device_lists_outbound_pokes (
    destination TEXT NOT NULL,
    stream_id BIGINT NOT NULL,
    user_id TEXT NOT NULL,
    device_id TEXT NOT NULL,
    sent BOOLEAN NOT NULL,
    ts BIGINT NOT NULL,
    opentracing_context TEXT,
    instance_name TEXT
)

CREATE INDEX device_lists_outbound_pokes_id ON device_lists_outbound_pokes (destination, stream_id)

CREATE INDEX device_lists_outbound_pokes_user ON device_lists_outbound_pokes (destination, user_id)

CREATE INDEX device_lists_outbound_pokes_stream ON device_lists_outbound_pokes (stream_id)

CREATE TABLE device_lists_remote_pending (
    stream_id BIGINT NOT NULL,
    user_id TEXT NOT NULL,
    device_id TEXT NOT NULL,
    instance_name TEXT,
    CONSTRAINT device_lists_remote_pending_pkey PRIMARY KEY (stream_id)
)

CREATE UNIQUE INDEX device_lists_remote_pending_user_device_id ON device_lists_remote_pending (user_id, device_id)

CREATE TABLE cache_invalidation_stream_by_instance (
    stream_id BIGINT NOT NULL,
    instance_name TEXT NOT NULL,
    cache_func TEXT NOT NULL,
    keys TEXT[],
    invalidation_ts BIGINT
)

CREATE INDEX cache_invalidation_stream_by_instance_instance_index ON cache_invalidation_stream_by_instance (instance_name, stream_id)

CREATE UNIQUE INDEX cache_invalidation_stream_by_instance_id ON cache_invalidation_stream_by_instance (stream_id)

CREATE TABLE stream_positions (
    stream_name TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    stream_id BIGINT NOT NULL
)

CREATE UNIQUE INDEX stream_positions_idx ON stream_positions (stream_name, instance_name)

CREATE TABLE worker_locks (
    lock_name TEXT NOT NULL,
    lock_key TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    token TEXT NOT NULL,
    last_renewed_ts BIGINT NOT NULL
)

CREATE UNIQUE INDEX worker_locks_key ON worker_locks (lock_name, lock_key)

CREATE TABLE worker_read_write_locks_mode (
    lock_name TEXT NOT NULL,
    lock_key TEXT NOT NULL,
    write_lock BOOLEAN NOT NULL,
    token TEXT NOT NULL
)

CREATE UNIQUE INDEX worker_read_write_locks_mode_type ON worker_read_write_locks_mode (lock_name, lock_key, write_lock)

CREATE UNIQUE INDEX worker_read_write_locks_mode_key ON worker_read_write_locks_mode (lock_name, lock_key)

CREATE TABLE schema_version (
    lock CHAR(1) DEFAULT 'X' NOT NULL,
    version INTEGER NOT NULL,
    upgraded BOOLEAN NOT NULL,
    CONSTRAINT schema_version_lock_check CHECK (lock = 'X'),
    CONSTRAINT schema_version_lock_key UNIQUE (lock)
)

CREATE TABLE state_groups (
    id BIGINT NOT NULL,
    room_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    CONSTRAINT state_groups_pkey PRIMARY KEY (id)
)

CREATE INDEX state_groups_room_id_idx ON state_groups (room_id)

CREATE TABLE state_groups_state (
    state_group BIGINT NOT NULL,
    room_id TEXT NOT NULL,
    type TEXT NOT NULL,
    state_key TEXT NOT NULL,
    event_id TEXT NOT NULL
)

CREATE INDEX state_groups_state_type_idx ON state_groups_state (state_group, type, state_key)

CREATE TABLE state_group_edges (
    state_group BIGINT NOT NULL,
    prev_state_group BIGINT NOT NULL
)

CREATE INDEX state_group_edges_prev_idx ON state_group_edges (prev_state_group)

CREATE UNIQUE INDEX state_group_edges_unique_idx ON state_group_edges (state_group, prev_state_group)

CREATE TABLE event_to_state_groups (
    event_id TEXT NOT NULL,
    state_group BIGINT NOT NULL,
    CONSTRAINT event_to_state_groups_event_id_key UNIQUE (event_id)
)

CREATE INDEX event_to_state_groups_sg_index ON event_to_state_groups (state_group)

CREATE TABLE current_state_delta_stream (
    stream_id BIGINT NOT NULL,
    room_id TEXT NOT NULL,
    type TEXT NOT NULL,
    state_key TEXT NOT NULL,
    event_id TEXT,
    prev_event_id TEXT,
    instance_name TEXT
)

CREATE INDEX current_state_delta_stream_idx ON current_state_delta_stream (stream_id)

CREATE TABLE event_edges (
    event_id TEXT NOT NULL,
    prev_event_id TEXT NOT NULL,
    room_id TEXT,
    is_state BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT event_edges_event_id_fkey FOREIGN KEY(event_id) REFERENCES events (event_id)
)

CREATE UNIQUE INDEX event_edges_event_id_prev_event_id_idx ON event_edges (event_id, prev_event_id)

CREATE INDEX ev_edges_prev_id ON event_edges (prev_event_id)

CREATE TABLE room_memberships (
    event_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    room_id TEXT NOT NULL,
    membership TEXT NOT NULL,
    forgotten INTEGER DEFAULT 0,
    display_name TEXT,
    avatar_url TEXT,
    event_stream_ordering BIGINT,
    participant BOOLEAN DEFAULT false,
    CONSTRAINT room_memberships_event_id_key UNIQUE (event_id)
)

CREATE INDEX room_memberships_user_room_forgotten ON room_memberships (user_id, room_id) WHERE forgotten = 1

CREATE INDEX room_memberships_room_id ON room_memberships (room_id)

CREATE INDEX room_memberships_user_id ON room_memberships (user_id)

ALTER TABLE room_memberships ADD CONSTRAINT event_stream_ordering_fkey FOREIGN KEY (event_stream_ordering) REFERENCES events (stream_ordering) NOT VALID

CREATE OR REPLACE FUNCTION check_event_stream_ordering() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND events.stream_ordering <> NEW.event_stream_ordering) THEN
        RAISE EXCEPTION 'Incorrect event_stream_ordering' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$

CREATE TRIGGER check_event_stream_ordering BEFORE INSERT OR UPDATE ON room_memberships FOR EACH ROW EXECUTE FUNCTION check_event_stream_ordering()

CREATE TABLE event_forward_extremities (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    CONSTRAINT event_forward_extremities_event_id_room_id_key UNIQUE (event_id, room_id)
)

CREATE INDEX ev_extrem_id ON event_forward_extremities (event_id)

CREATE INDEX ev_extrem_room ON event_forward_extremities (room_id)

ALTER TABLE event_forward_extremities ADD CONSTRAINT event_forward_extremities_event_id FOREIGN KEY (event_id) REFERENCES events (event_id) DEFERRABLE INITIALLY DEFERRED NOT VALID

CREATE TABLE event_failed_pull_attempts (
    room_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    num_attempts INTEGER NOT NULL,
    last_attempt_ts BIGINT NOT NULL,
    last_cause TEXT NOT NULL,
    CONSTRAINT event_failed_pull_attempts_pkey PRIMARY KEY (room_id, event_id),
    CONSTRAINT event_failed_pull_attempts_room_id_fkey FOREIGN KEY(room_id) REFERENCES rooms (room_id)
)

CREATE INDEX event_failed_pull_attempts_room_id ON event_failed_pull_attempts (room_id)

CREATE TABLE partial_state_rooms (
    room_id TEXT NOT NULL,
    device_lists_stream_id BIGINT DEFAULT 0 NOT NULL,
    join_event_id TEXT,
    joined_via TEXT,
    CONSTRAINT partial_state_rooms_pkey PRIMARY KEY (room_id),
    CONSTRAINT partial_state_rooms_room_id_fkey FOREIGN KEY(room_id) REFERENCES rooms (room_id),
    CONSTRAINT partial_state_rooms_join_event_id_fkey FOREIGN KEY(join_event_id) REFERENCES events (event_id)
)

CREATE TABLE un_partial_stated_room_stream (
    stream_id BIGINT NOT NULL,
    instance_name TEXT NOT NULL,
    room_id TEXT NOT NULL,
    CONSTRAINT un_partial_stated_room_stream_pkey PRIMARY KEY (stream_id),
    CONSTRAINT un_partial_stated_room_stream_room_id_fkey FOREIGN KEY(room_id) REFERENCES rooms (room_id) ON DELETE CASCADE
)

CREATE INDEX un_partial_stated_room_stream_room_id ON un_partial_stated_room_stream (room_id)

CREATE TABLE un_partial_stated_event_stream (
    stream_id BIGINT NOT NULL,
    instance_name TEXT NOT NULL,
    event_id TEXT NOT NULL,
    rejection_status_changed BOOLEAN NOT NULL,
    CONSTRAINT un_partial_stated_event_stream_pkey PRIMARY KEY (stream_id),
    CONSTRAINT un_partial_stated_event_stream_event_id_fkey FOREIGN KEY(event_id) REFERENCES events (event_id) ON DELETE CASCADE
)

CREATE UNIQUE INDEX un_partial_stated_event_stream_room_id ON un_partial_stated_event_stream (event_id)

CREATE TABLE worker_read_write_locks (
    lock_name TEXT NOT NULL,
    lock_key TEXT NOT NULL,
    instance_name TEXT NOT NULL,
    write_lock BOOLEAN NOT NULL,
    token TEXT NOT NULL,
    last_renewed_ts BIGINT NOT NULL,
    CONSTRAINT worker_read_write_locks_lock_name_lock_key_write_lock_fkey FOREIGN KEY(lock_name, lock_key, write_lock) REFERENCES worker_read_write_locks_mode (lock_name, lock_key, write_lock)
)

CREATE UNIQUE INDEX worker_read_write_locks_write ON worker_read_write_locks (lock_name, lock_key) WHERE write_lock

CREATE UNIQUE INDEX worker_read_write_locks_key ON worker_read_write_locks (lock_name, lock_key, token)

CREATE OR REPLACE FUNCTION upsert_read_write_lock_parent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO worker_read_write_locks_mode AS mode (lock_name, lock_key, write_lock, token)
    VALUES (NEW.lock_name, NEW.lock_key, NEW.write_lock, NEW.token)
    ON CONFLICT (lock_name, lock_key) DO UPDATE SET token = mode.token;
    RETURN NEW;
END
$$

CREATE TRIGGER upsert_read_write_lock_parent_trigger BEFORE INSERT ON worker_read_write_locks FOR EACH ROW EXECUTE FUNCTION upsert_read_write_lock_parent()

CREATE OR REPLACE FUNCTION delete_read_write_lock_parent() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    other_token text;
BEGIN
    PERFORM 1 FROM worker_read_write_locks_mode
    WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key AND token = OLD.token
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT token INTO other_token FROM worker_read_write_locks
    WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key
    LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        DELETE FROM worker_read_write_locks_mode
        WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key AND token = OLD.token;
    ELSE
        UPDATE worker_read_write_locks_mode SET token = other_token
        WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key;
    END IF;
    RETURN NULL;
END
$$

CREATE TRIGGER delete_read_write_lock_parent_trigger AFTER DELETE ON worker_read_write_locks FOR EACH ROW EXECUTE FUNCTION delete_read_write_lock_parent()

CREATE TABLE current_state_events (
    event_id TEXT NOT NULL,
    room_id TEXT NOT NULL,
    type TEXT NOT NULL,
    state_key TEXT NOT NULL,
    membership TEXT,
    event_stream_ordering BIGINT,
    CONSTRAINT current_state_events_event_id_key UNIQUE (event_id),
    CONSTRAINT current_state_events_room_id_type_state_key_key UNIQUE (room_id, type, state_key)
)

CREATE INDEX current_state_events_member_index ON current_state_events (state_key) WHERE type = 'm.room.member'

ALTER TABLE current_state_events ADD CONSTRAINT event_stream_ordering_fkey FOREIGN KEY (event_stream_ordering) REFERENCES events (stream_ordering) NOT VALID

CREATE OR REPLACE FUNCTION check_event_stream_ordering() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND events.stream_ordering <> NEW.event_stream_ordering) THEN
        RAISE EXCEPTION 'Incorrect event_stream_ordering' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$

CREATE TRIGGER check_event_stream_ordering BEFORE INSERT OR UPDATE ON current_state_events FOR EACH ROW EXECUTE FUNCTION check_event_stream_ordering()

CREATE TABLE local_current_membership (
    room_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    membership TEXT NOT NULL,
    event_stream_ordering BIGINT
)

CREATE INDEX local_current_membership_room_idx ON local_current_membership (room_id)

CREATE UNIQUE INDEX local_current_membership_idx ON local_current_membership (user_id, room_id)

ALTER TABLE local_current_membership ADD CONSTRAINT event_stream_ordering_fkey FOREIGN KEY (event_stream_ordering) REFERENCES events (stream_ordering) NOT VALID

CREATE OR REPLACE FUNCTION check_event_stream_ordering() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND events.stream_ordering <> NEW.event_stream_ordering) THEN
        RAISE EXCEPTION 'Incorrect event_stream_ordering' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$

CREATE TRIGGER check_event_stream_ordering BEFORE INSERT OR UPDATE ON local_current_membership FOR EACH ROW EXECUTE FUNCTION check_event_stream_ordering()

CREATE TABLE partial_state_rooms_servers (
    room_id TEXT NOT NULL,
    server_name TEXT NOT NULL,
    CONSTRAINT partial_state_rooms_servers_room_id_server_name_key UNIQUE (room_id, server_name),
    CONSTRAINT partial_state_rooms_servers_room_id_fkey FOREIGN KEY(room_id) REFERENCES partial_state_rooms (room_id)
)

CREATE TABLE partial_state_events (
    room_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    CONSTRAINT partial_state_events_event_id_key UNIQUE (event_id),
    CONSTRAINT partial_state_events_event_id_fkey FOREIGN KEY(event_id) REFERENCES events (event_id),
    CONSTRAINT partial_state_events_room_id_fkey FOREIGN KEY(room_id) REFERENCES partial_state_rooms (room_id)
)

CREATE INDEX partial_state_events_room_id_idx ON partial_state_events (room_id)

CREATE OR REPLACE FUNCTION check_partial_state_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND events.room_id <> NEW.room_id) THEN
        RAISE EXCEPTION 'Incorrect room_id in partial_state_events' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$

CREATE TRIGGER check_partial_state_events BEFORE INSERT OR UPDATE ON partial_state_events FOR EACH ROW EXECUTE FUNCTION check_partial_state_events()

ALTER TABLE worker_read_write_locks_mode ADD CONSTRAINT worker_read_write_locks_mode_foreign FOREIGN KEY(lock_name, lock_key, token) REFERENCES worker_read_write_locks (lock_name, lock_key, token) DEFERRABLE INITIALLY DEFERRED

SELECT setval('account_data_sequence', 1, true)

SELECT setval('cache_invalidation_stream_seq', 1, true)

SELECT setval('device_inbox_sequence', 1, true)

SELECT setval('device_lists_sequence', 1, true)

SELECT setval('e2e_cross_signing_keys_sequence', 1, true)

SELECT setval('events_backfill_stream_seq', 1, true)

SELECT setval('events_stream_seq', 1, true)

SELECT setval('presence_stream_sequence', 1, true)

SELECT setval('profile_updates_sequence', 1, true)

SELECT setval('push_rules_stream_sequence', 1, true)

SELECT setval('pushers_sequence', 1, true)

SELECT setval('quarantined_media_id_seq', 1, true)

SELECT setval('receipts_sequence', 1, true)

SELECT setval('sticky_events_sequence', 1, true)

SELECT setval('un_partial_stated_event_stream_sequence', 1, true)

SELECT setval('un_partial_stated_room_stream_sequence', 1, true)

INSERT INTO schema_version (version, upgraded) VALUES (94, false)
"""
