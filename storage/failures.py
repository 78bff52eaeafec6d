"""What a database error means: try again, tell the operator, migrate, or a bug. Pure."""

from __future__ import annotations

import sqlite3
from enum import Enum

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_SQLITE_LOST_RACE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_UNUSABLE = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
_SQLITE_NO_SUCH = ("no such table", "no such column", "has no column named")

# Source: PostgreSQL documentation, appendix "PostgreSQL Error Codes".
_POSTGRESQL_LOST_RACE = frozenset({"40001", "40P01", "55P03"})
"""serialization_failure, deadlock_detected, lock_not_available."""
_POSTGRESQL_NOT_READY = frozenset({"57P01", "57P02", "57P03", "53300"})
"""admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections."""
_POSTGRESQL_CONNECTION_CLASS = "08"
_POSTGRESQL_UNUSABLE_CLASSES = ("28", "3D", "53", "58", "XX")
"""Authorization, no such database, out of resources, system error, internal error."""
_POSTGRESQL_NO_SUCH = frozenset({"42P01", "42703"})
"""undefined_table, undefined_column."""


class Failure(Enum):
    """What can be done about a database error."""

    REPEAT = "repeat"
    """The same transaction can succeed a moment later."""
    UNAVAILABLE = "unavailable"
    """The operator has to see to the database."""
    SCHEMA = "schema"
    """A table or column is missing: the database has to be migrated."""
    OTHER = "other"
    """A refused row, or a mistake of ours."""


def classify(error: DBAPIError | PoolTimeoutError) -> Failure:
    """What can be done about `error`."""
    if isinstance(error, PoolTimeoutError) or error.connection_invalidated:
        return Failure.REPEAT
    if isinstance(error.orig, sqlite3.Error):
        return _classify_sqlite(error.orig)
    return _classify_postgresql(error)


def _classify_sqlite(error: sqlite3.Error) -> Failure:
    # The low byte is the error, the rest says more of it.
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in _SQLITE_LOST_RACE:
        return Failure.REPEAT
    if code in _SQLITE_UNUSABLE:
        return Failure.UNAVAILABLE
    if any(words in str(error) for words in _SQLITE_NO_SUCH):
        return Failure.SCHEMA
    return Failure.OTHER


def _classify_postgresql(error: DBAPIError) -> Failure:
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is None:
        # No server has said anything: the connection could not be made.
        return Failure.REPEAT if isinstance(error, OperationalError) else Failure.OTHER
    if state in _POSTGRESQL_LOST_RACE | _POSTGRESQL_NOT_READY:
        return Failure.REPEAT
    if state.startswith(_POSTGRESQL_CONNECTION_CLASS):
        return Failure.REPEAT
    if state.startswith(_POSTGRESQL_UNUSABLE_CLASSES):
        return Failure.UNAVAILABLE
    return Failure.SCHEMA if state in _POSTGRESQL_NO_SUCH else Failure.OTHER
