"""What database errors mean."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from storage.failures import Failure, classify


def _sqlite(code: int, message: str = "message") -> DBAPIError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return OperationalError("SELECT 1", None, error)


def _postgresql(state: str, kind: type[DBAPIError] = OperationalError) -> DBAPIError:
    error_class: Any = psycopg.errors.lookup(state)
    return kind("SELECT 1", None, error_class("message"))


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (_sqlite(sqlite3.SQLITE_BUSY), Failure.REPEAT),
        # SQLITE_BUSY_SNAPSHOT: the extended code says more of the same.
        (_sqlite(sqlite3.SQLITE_BUSY | 2 << 8), Failure.REPEAT),
        (_sqlite(sqlite3.SQLITE_FULL), Failure.UNAVAILABLE),
        (_sqlite(sqlite3.SQLITE_READONLY), Failure.UNAVAILABLE),
        (_sqlite(sqlite3.SQLITE_ERROR, "no such table: rooms"), Failure.SCHEMA),
        (_sqlite(sqlite3.SQLITE_ERROR, "table rooms has no column named x"), Failure.SCHEMA),
        (_sqlite(sqlite3.SQLITE_ERROR, "near 'SELEC': syntax error"), Failure.OTHER),
        (_sqlite(sqlite3.SQLITE_CONSTRAINT), Failure.OTHER),
        (_postgresql("40001"), Failure.REPEAT),
        (_postgresql("40P01"), Failure.REPEAT),
        (_postgresql("57P01"), Failure.REPEAT),
        (_postgresql("08006"), Failure.REPEAT),
        (_postgresql("53100"), Failure.UNAVAILABLE),
        (_postgresql("28P01"), Failure.UNAVAILABLE),
        (_postgresql("42P01", ProgrammingError), Failure.SCHEMA),
        (_postgresql("42601", ProgrammingError), Failure.OTHER),
        (_postgresql("23505", IntegrityError), Failure.OTHER),
        (OperationalError("", None, psycopg.OperationalError("refused")), Failure.REPEAT),
        (DBAPIError("", None, psycopg.Error(), connection_invalidated=True), Failure.REPEAT),
        (PoolTimeoutError(), Failure.REPEAT),
    ],
)
def test_failures(error: DBAPIError | PoolTimeoutError, failure: Failure) -> None:
    assert classify(error) is failure
