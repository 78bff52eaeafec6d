"""Bringing a database to the newest schema, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from storage.database import Database

R = TypeVar("R")

VERSION_TABLE = "resync_alembic_version"
"""Not alembic's usual name: the database may be Synapse's, with other programs beside us."""

_LOCK_ID = 0x7265_7379_6E63
"""PostgreSQL advisory lock: two instances that start together do not migrate together."""


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at `url` to `revision`, in one transaction.

    A SQLite file is created where it is missing. On a database that Synapse created, its tables
    are left as they are and only ours are added.

    Raises:
        DatabaseUnavailable, InvalidDatabaseUrl: see `storage.database.Database`.
    """
    _with_connection(url, lambda connection: command.upgrade(_config(connection), revision))


def downgrade(url: str, revision: str) -> None:
    """Take the database at `url` back to `revision`; "base" removes every table of ours.

    Tables that Synapse created are never removed.
    """
    _with_connection(url, lambda connection: command.downgrade(_config(connection), revision))


def current(url: str) -> str | None:
    """The revision of the database at `url`, or None when it was never migrated."""
    return _with_connection(url, _current)


def newest() -> str:
    """The newest revision that this version of the project knows."""
    head = ScriptDirectory(str(_directory())).get_current_head()
    assert head is not None
    return head


def is_current(url: str) -> bool:
    """Whether the database at `url` is at the newest revision."""
    return current(url) == newest()


def upgrade_connection(connection: Connection, revision: str = "head") -> None:
    """`upgrade` inside the caller's transaction."""
    _lock(connection)
    command.upgrade(_config(connection), revision)


def _with_connection(url: str, function: Callable[[Connection], R]) -> R:
    def locked(connection: Connection) -> R:
        _lock(connection)
        return function(connection)

    database = Database(url, pool_size=1)
    try:
        return database.run_sync(locked)
    finally:
        database.close_sync()


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK_ID})")


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _directory() -> Path:
    (path,) = migrations.__path__
    return Path(path)


def _config(connection: Connection) -> Config:
    config = Config()
    # alembic reads the option through a template in which % is special.
    config.set_main_option("script_location", str(_directory()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
