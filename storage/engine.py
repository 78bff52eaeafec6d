"""SQLAlchemy engines for the two databases: SQLite files and PostgreSQL."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from storage.errors import InvalidDatabaseUrl

READ_ONLY_OPTION = "resync_read_only"
"""Execution option of a connection whose transactions only read."""

UNFLUSHED_OPTION = "resync_unflushed"
"""Execution option of a connection whose commits do not wait for the disk."""

BUSY_TIMEOUT_MS = 10_000
"""How long SQLite waits for another process's write transaction."""

CONNECT_TIMEOUT_S = 10


def parse_url(url: str) -> URL:
    """The database at `url`: `sqlite:///path` or `postgresql://user:password@host/name`.

    Raises:
        InvalidDatabaseUrl: it is neither, or a SQLite database in memory.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidDatabaseUrl(
            "the database is not a URL: write sqlite:///file or postgresql://user@host/name"
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise InvalidDatabaseUrl("the database needs a file: write sqlite:///file")
            return parsed.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidDatabaseUrl(
                f"the database {other!r} is not supported: write sqlite:///file or"
                " postgresql://user@host/name"
            )


def make_engine(url: URL, *, pool_size: int) -> Engine:
    """An engine for a URL from `parse_url` with at most `pool_size` connections.

    PostgreSQL runs at READ COMMITTED: every race between writers is decided by a unique key, a
    foreign key or a row lock, and a bulk insert that meets rows of another transaction has to skip
    them, where REPEATABLE READ would make it start again.
    """
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            connect_args={"timeout": BUSY_TIMEOUT_MS / 1000, "check_same_thread": False},
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "resync"},
    )
    event.listen(engine, "begin", _begin_postgresql)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver's own BEGIN comes too late, with the first write: we begin transactions ourselves.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    # A checkpoint every 32 MB: by default there is one in the middle of every large batch.
    connection.execute("PRAGMA wal_autocheckpoint = 8000")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(READ_ONLY_OPTION, False):
        connection.exec_driver_sql("BEGIN")
        return
    # What was announced to other processes must survive a power failure. A commit that waits for
    # the disk takes those before it along, so that what is lost is always the latest.
    synchronous = "NORMAL" if options.get(UNFLUSHED_OPTION, False) else "FULL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {synchronous}")
    # A transaction that reads first and writes later fails when another wrote in between, unless
    # it takes the write lock at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_postgresql(connection: Connection) -> None:
    if connection.get_execution_options().get(UNFLUSHED_OPTION, False):
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
