"""Triggers: what a foreign key cannot say. Attached to the tables, so that creating them is enough.

* `check_partial_state_events`: a partial event carries the room id of its event.
* `check_event_stream_ordering`: a row that repeats the stream ordering of its event repeats it
  correctly.
* `upsert_/delete_read_write_lock_parent`: keep `worker_read_write_locks_mode` in step.
"""

from __future__ import annotations

from sqlalchemy import Table

from storage.schema.base import after_create
from storage.schema.events import room_memberships
from storage.schema.partial_state import partial_state_events
from storage.schema.servers import worker_read_write_locks
from storage.schema.state import current_state_events, local_current_membership


def _postgresql_check(name: str, wrong: str, message: str) -> str:
    """A trigger function that refuses a row whose event satisfies `wrong`."""
    return f"""\
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND {wrong}) THEN
        RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$"""


def _postgresql_trigger(name: str, when: str, table: Table, function: str) -> str:
    return (
        f"CREATE TRIGGER {name} {when} ON {table.name} FOR EACH ROW EXECUTE FUNCTION {function}()"
    )


def _sqlite_check(name: str, operation: str, table: Table, wrong: str, message: str) -> str:
    return f"""\
CREATE TRIGGER {name} BEFORE {operation} ON {table.name} FOR EACH ROW
BEGIN
    SELECT RAISE(ABORT, '{message}') WHERE EXISTS (
        SELECT 1 FROM events WHERE events.event_id = NEW.event_id AND {wrong}
    );
END"""


WRONG_ROOM = "events.room_id <> NEW.room_id"
WRONG_ROOM_MESSAGE = "Incorrect room_id in partial_state_events"
WRONG_ORDERING = "events.stream_ordering <> NEW.event_stream_ordering"
WRONG_ORDERING_MESSAGE = "Incorrect event_stream_ordering"

# The upsert touches the row even when it changes nothing: that locks it against a concurrent
# delete_read_write_lock_parent.
POSTGRESQL_UPSERT_LOCK_PARENT = """\
CREATE OR REPLACE FUNCTION upsert_read_write_lock_parent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO worker_read_write_locks_mode AS mode (lock_name, lock_key, write_lock, token)
    VALUES (NEW.lock_name, NEW.lock_key, NEW.write_lock, NEW.token)
    ON CONFLICT (lock_name, lock_key) DO UPDATE SET token = mode.token;
    RETURN NEW;
END
$$"""

# When the row's own token goes, the token of another holder takes its place; without another
# holder the row goes. FOR UPDATE keeps two leavers from missing each other.
POSTGRESQL_DELETE_LOCK_PARENT = """\
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
$$"""

SQLITE_UPSERT_LOCK_PARENT = """\
CREATE TRIGGER upsert_read_write_lock_parent_trigger
BEFORE INSERT ON worker_read_write_locks FOR EACH ROW
BEGIN
    INSERT OR IGNORE INTO worker_read_write_locks_mode (lock_name, lock_key, write_lock, token)
    VALUES (NEW.lock_name, NEW.lock_key, NEW.write_lock, NEW.token);
END"""

SQLITE_DELETE_LOCK_PARENT = """\
CREATE TRIGGER delete_read_write_lock_parent_trigger
AFTER DELETE ON worker_read_write_locks FOR EACH ROW
BEGIN
    DELETE FROM worker_read_write_locks_mode
    WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key AND NOT EXISTS (
        SELECT 1 FROM worker_read_write_locks
        WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key
    );
    UPDATE worker_read_write_locks_mode SET token = (
        SELECT token FROM worker_read_write_locks
        WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key
    )
    WHERE lock_name = OLD.lock_name AND lock_key = OLD.lock_key AND token = OLD.token;
END"""


after_create(
    partial_state_events,
    "postgresql",
    _postgresql_check("check_partial_state_events", WRONG_ROOM, WRONG_ROOM_MESSAGE),
)
after_create(
    partial_state_events,
    "postgresql",
    _postgresql_trigger(
        "check_partial_state_events",
        "BEFORE INSERT OR UPDATE",
        partial_state_events,
        "check_partial_state_events",
    ),
)
for _suffix, _operation in (("", "INSERT"), ("_update", "UPDATE")):
    after_create(
        partial_state_events,
        "sqlite",
        _sqlite_check(
            f"partial_state_events_bad_room_id{_suffix}",
            _operation,
            partial_state_events,
            WRONG_ROOM,
            WRONG_ROOM_MESSAGE,
        ),
    )

for _table in (room_memberships, current_state_events, local_current_membership):
    after_create(
        _table,
        "postgresql",
        _postgresql_check("check_event_stream_ordering", WRONG_ORDERING, WRONG_ORDERING_MESSAGE),
    )
    after_create(
        _table,
        "postgresql",
        _postgresql_trigger(
            "check_event_stream_ordering",
            "BEFORE INSERT OR UPDATE",
            _table,
            "check_event_stream_ordering",
        ),
    )
    for _suffix, _operation in (("", "INSERT"), ("_update", "UPDATE")):
        after_create(
            _table,
            "sqlite",
            _sqlite_check(
                f"{_table.name}_bad_event_stream_ordering{_suffix}",
                _operation,
                _table,
                WRONG_ORDERING,
                WRONG_ORDERING_MESSAGE,
            ),
        )

after_create(worker_read_write_locks, "postgresql", POSTGRESQL_UPSERT_LOCK_PARENT)
after_create(
    worker_read_write_locks,
    "postgresql",
    _postgresql_trigger(
        "upsert_read_write_lock_parent_trigger",
        "BEFORE INSERT",
        worker_read_write_locks,
        "upsert_read_write_lock_parent",
    ),
)
after_create(worker_read_write_locks, "postgresql", POSTGRESQL_DELETE_LOCK_PARENT)
after_create(
    worker_read_write_locks,
    "postgresql",
    _postgresql_trigger(
        "delete_read_write_lock_parent_trigger",
        "AFTER DELETE",
        worker_read_write_locks,
        "delete_read_write_lock_parent",
    ),
)
after_create(worker_read_write_locks, "sqlite", SQLITE_UPSERT_LOCK_PARENT)
after_create(worker_read_write_locks, "sqlite", SQLITE_DELETE_LOCK_PARENT)
