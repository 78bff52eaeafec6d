"""Transactions: whole or not at all, repeated when they lose a race, errors that say what to do."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from storage import rooms
from storage.database import Database
from storage.errors import DatabaseUnavailable, InvalidDatabaseUrl, SchemaOutOfDate


def _insert(connection: Connection, room_id: str) -> str:
    rooms.insert_room(connection, room_id, "10", None)
    return room_id


def _count(connection: Connection) -> int:
    return connection.execute(text("SELECT count(*) FROM rooms")).scalar_one()


async def test_commit_and_rollback(database: Database) -> None:
    def fail(connection: Connection, room_id: str, *, why: str) -> None:
        _insert(connection, room_id)
        raise LookupError(why)

    assert await database.run(_insert, "!a:x") == "!a:x"
    assert database.run_sync(_insert, "!b:x") == "!b:x"
    with pytest.raises(LookupError, match="because"):
        await database.run(fail, "!c:x", why="because")
    assert await database.read(_count) == 2


async def test_only_what_can_be_had_again_does_not_wait_for_the_disk(database: Database) -> None:
    def how_commits_wait(connection: Connection) -> str:
        _insert(connection, f"!{_count(connection)}:x")
        setting = "SHOW synchronous_commit" if database.is_postgresql else "PRAGMA synchronous"
        return str(connection.execute(text(setting)).scalar_one())

    waits, does_not = ("on", "off") if database.is_postgresql else ("2", "1")
    for _ in range(2):
        assert await database.run(how_commits_wait) == waits
        assert await database.run_unflushed(how_commits_wait) == does_not
    assert database.run_sync(how_commits_wait) == waits
    assert await database.read(_count) == 5


async def test_the_event_loop_goes_on(database: Database) -> None:
    started, finish = threading.Event(), threading.Event()

    def wait(connection: Connection) -> None:
        started.set()
        assert finish.wait(10)

    task = asyncio.create_task(database.run(wait))
    await asyncio.to_thread(started.wait, 10)
    # Reads are not held up by a write either, on any of the two.
    assert await database.read(_count) == 0
    finish.set()
    await task


async def test_many_writers(database: Database) -> None:
    def increment(connection: Connection) -> None:
        if database.is_postgresql:
            connection.execute(text("SELECT 1 FROM rooms WHERE room_id = '!n' FOR UPDATE"))
        value = connection.execute(text("SELECT creator FROM rooms")).scalar_one()
        connection.execute(text("UPDATE rooms SET creator = :n"), {"n": str(int(value) + 1)})

    await database.run(lambda connection: rooms.insert_room(connection, "!n", "10", "0"))
    await asyncio.gather(*(database.run(increment) for _ in range(60)))

    def value(connection: Connection) -> str:
        return connection.execute(text("SELECT creator FROM rooms")).scalar_one()

    assert await database.read(value) == "60"


async def test_two_processes_on_one_sqlite_file(sqlite_url: str) -> None:
    """What another process holds locked is waited for."""
    database = Database(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO rooms (room_id) VALUES ('!other')")
    task = asyncio.create_task(database.run(_insert, "!ours"))
    await asyncio.sleep(0.2)
    assert not task.done()
    other.execute("COMMIT")
    other.close()
    await task
    assert await database.read(_count) == 2
    await database.close()


async def test_foreign_keys_are_enforced(database: Database) -> None:
    def write(connection: Connection) -> None:
        connection.execute(text("INSERT INTO partial_state_rooms (room_id) VALUES ('!none')"))

    with pytest.raises(IntegrityError):
        await database.run(write)


async def test_deferred_foreign_keys_are_checked_at_the_commit(database: Database) -> None:
    def write(connection: Connection) -> None:
        connection.execute(
            text("INSERT INTO event_forward_extremities (event_id, room_id) VALUES ('$x', '!r')")
        )

    def write_and_remove(connection: Connection) -> None:
        write(connection)
        connection.execute(text("DELETE FROM event_forward_extremities"))

    with pytest.raises(IntegrityError):
        await database.run(write)
    await database.run(write_and_remove)


async def test_read_and_write_locks_exclude_each_other(database: Database) -> None:
    """The triggers of `worker_read_write_locks`."""

    def lock(connection: Connection, token: str, write: bool) -> None:
        connection.execute(
            text(
                "INSERT INTO worker_read_write_locks"
                " (lock_name, lock_key, instance_name, write_lock, token, last_renewed_ts)"
                " VALUES ('name', 'key', 'me', :write, :token, 0)"
            ),
            {"write": write, "token": token},
        )

    def unlock(connection: Connection, token: str) -> None:
        connection.execute(
            text("DELETE FROM worker_read_write_locks WHERE token = :token"), {"token": token}
        )

    def modes(connection: Connection) -> list[tuple[bool, str]]:
        rows = connection.execute(
            text("SELECT write_lock, token FROM worker_read_write_locks_mode")
        )
        return [(bool(write), token) for write, token in rows]

    await database.run(lock, "reader1", False)
    await database.run(lock, "reader2", False)
    with pytest.raises(IntegrityError):
        await database.run(lock, "writer", True)
    await database.run(unlock, "reader1")
    assert await database.read(modes) == [(False, "reader2")]
    with pytest.raises(IntegrityError):
        await database.run(lock, "writer", True)
    await database.run(unlock, "reader2")
    assert await database.read(modes) == []
    await database.run(lock, "writer", True)
    for write in (True, False):
        with pytest.raises(IntegrityError):
            await database.run(lock, "another", write)
    await database.run(unlock, "writer")
    assert await database.read(modes) == []


async def test_a_lost_race_is_repeated(postgresql_database: Database) -> None:
    """Two transactions that lock two rows crosswise: one is rolled back, and then succeeds."""
    both = threading.Barrier(2, timeout=10)
    runs: list[str] = []

    def cross(connection: Connection, first: str, second: str) -> None:
        runs.append(first)
        statement = text("UPDATE rooms SET creator = :creator WHERE room_id = :room_id")
        connection.execute(statement, {"creator": first, "room_id": first})
        if len(runs) <= 2:
            both.wait()
        connection.execute(statement, {"creator": first, "room_id": second})

    await postgresql_database.run(_insert, "!a")
    await postgresql_database.run(_insert, "!b")
    await asyncio.gather(
        postgresql_database.run(cross, "!a", "!b"), postgresql_database.run(cross, "!b", "!a")
    )
    assert len(runs) == 3


async def test_a_lost_connection_is_repeated(postgresql_database: Database) -> None:
    runs = 0

    def disconnect_once(connection: Connection) -> int:
        nonlocal runs
        runs += 1
        _insert(connection, "!a")
        if runs == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return _count(connection)

    assert await postgresql_database.run(disconnect_once) == 1
    assert runs == 2


async def test_a_connection_lost_during_copy_is_repeated(
    postgresql_database: Database, store, event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the driver that do not pass through SQLAlchemy are treated as its own are."""
    runs = 0
    given = [event(f"${n}") for n in range(50)]

    def disconnect_once(connection: Connection) -> int:
        nonlocal runs
        runs += 1
        store(connection).room()
        if runs == 1:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            postgresql_database.run_sync(
                lambda other: other.execute(
                    text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid}
                )
            )
            from storage import bulk, schema

            bulk.insert(connection, schema.rooms, ("room_id",), [("!copied",)])
        return len(store(connection).outliers(*given))

    assert await postgresql_database.run(disconnect_once) == 50
    assert runs == 2


async def test_a_connection_lost_during_the_commit_is_not_repeated(
    postgresql_database: Database,
) -> None:
    """It may have been committed; whoever asked has to look."""
    runs = 0

    def disconnect(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        postgresql_database.run_sync(
            lambda other: other.execute(
                text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid}
            )
        )

    with pytest.raises(DatabaseUnavailable, match="lost during a commit"):
        await postgresql_database.run(disconnect)
    assert runs == 1


async def test_reads_do_not_write(postgresql_database: Database) -> None:
    with pytest.raises(DBAPIError, match="read-only"):
        await postgresql_database.read(_insert, "!a")
    # The next transaction on that connection writes again.
    for _ in range(20):
        await postgresql_database.run(_insert, "!a")


async def test_close_waits_for_what_is_running(database: Database) -> None:
    started, finish = threading.Event(), threading.Event()

    def slow(connection: Connection) -> str:
        started.set()
        assert finish.wait(10)
        return _insert(connection, "!a")

    task = asyncio.create_task(database.run(slow))
    await asyncio.to_thread(started.wait, 10)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    with pytest.raises(DatabaseUnavailable, match="shutting down"):
        await database.run(_count)
    finish.set()
    await closing
    assert await task == "!a"


async def test_no_server(unused_tcp_port: int) -> None:
    database = Database(f"postgresql://user:s3cret@127.0.0.1:{unused_tcp_port}/name")
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.run(_count)
    message = str(caught.value)
    assert "postgresql://user:***@127.0.0.1" in message
    assert "is running and reachable" in message
    assert "s3cret" not in message
    await database.close()


async def test_no_such_database(postgresql_server: Any) -> None:
    database = Database(postgresql_server.url("resync_test_that_is_not_there"))
    with pytest.raises(DatabaseUnavailable, match="does not exist"):
        await database.run(_count)
    await database.close()


async def test_no_such_directory(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/missing/file.db")
    with pytest.raises(DatabaseUnavailable, match="its directory exists"):
        await database.run(_count)
    await database.close()


async def test_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("These are notes, not a database." * 100)
    database = Database(f"sqlite:///{path}")
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        await database.run(_count)
    await database.close()


async def test_no_tables(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(SchemaOutOfDate, match="resync migrate"):
        await database.run(_count)
    await database.close()


async def test_other_errors_of_a_statement_come_out_as_they_are(database: Database) -> None:
    def wrong(connection: Connection) -> None:
        connection.execute(text("SELEC 1"))

    with pytest.raises((OperationalError, DBAPIError), match="syntax"):
        await database.run(wrong)


async def test_a_caller_that_is_cancelled_waits_for_its_running_transaction(
    database: Database,
) -> None:
    """Stream ids are complete once their block is left: nothing may be committed after that."""
    running, go_on = threading.Event(), threading.Event()
    ended = False

    def slow(connection: Connection) -> None:
        nonlocal ended
        running.set()
        assert go_on.wait(30)
        connection.execute(text("SELECT 1"))
        ended = True

    task = asyncio.create_task(database.run(slow))
    await asyncio.to_thread(running.wait, 30)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mysql://localhost/x", "'mysql' is not supported"),
        ("resync.db", "not a URL"),
        ("", "not a URL"),
        ("postgresql://host:port/x", "not a URL"),
    ],
)
def test_urls(url: str, message: str) -> None:
    with pytest.raises(InvalidDatabaseUrl, match=message):
        Database(url)
