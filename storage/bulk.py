"""Many rows at once: COPY on PostgreSQL, executemany on SQLite, and lists of any length in WHERE.

Everything happens in the caller's transaction. Driver errors come out as SQLAlchemy's, so that
`Database.run` can tell a lost race from a bug.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import psycopg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError

Rows = Sequence[Sequence[Any]]


def insert(connection: Connection, table: Table, columns: Sequence[str], rows: Rows) -> None:
    """Insert `rows`, whose values are in the order of `columns`.

    Raises:
        sqlalchemy.exc.IntegrityError: a row is there already, or a constraint refuses it.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table, table.name, columns, rows)
        return
    marks = ", ".join("?" * len(columns))
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})",
        rows if isinstance(rows[0], tuple) else [tuple(row) for row in rows],
    )


def insert_new(
    connection: Connection,
    table: Table,
    columns: Sequence[str],
    rows: Rows,
    *,
    key: str,
    looked_up: bool = False,
) -> set[str]:
    """Insert those `rows` whose `key` is not in `table` yet, and return their keys.

    `key` names a text column with a unique constraint. Concurrent transactions may insert the
    same keys: one of them does, the others wait for it and skip them. Rows are inserted in the
    order of their keys, so that two such transactions never wait for each other.

    `looked_up`: this transaction has found none of them there, so that only another could have
    inserted one, which SQLite does not let happen.
    """
    position = columns.index(key)
    ordered = sorted(rows, key=itemgetter(position))
    if not ordered:
        return set()
    names = ", ".join(columns)
    if connection.dialect.name == "postgresql":
        staging = f"resync_new_{table.name}"
        connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {staging} ON COMMIT DELETE ROWS"
            f" AS SELECT * FROM {table.name} WITH NO DATA"
        )
        connection.exec_driver_sql(f"TRUNCATE {staging}")
        _copy(connection, table, staging, columns, ordered)
        inserted = connection.exec_driver_sql(
            f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {staging} ORDER BY {key}"
            f" ON CONFLICT ({key}) DO NOTHING RETURNING {key}"
        )
        return set(inserted.scalars())
    keys = {row[position] for row in ordered}
    column = table.c[key]
    if not looked_up:
        keys -= set(connection.scalars(select(column).where(is_in(connection, column, keys))))
        ordered = [row for row in ordered if row[position] in keys]
    insert(connection, table, columns, ordered)
    return keys


def is_in(
    connection: Connection, column: ColumnElement[Any], values: Collection[Any]
) -> ColumnElement[bool]:
    """`column` is one of `values`, which may be many thousands: they travel as one parameter.

    Strings that a database cannot hold are not in it, so they are left out.
    """
    # One look at all of them first: there may be very many.
    if isinstance(column.type, Text) and not is_storable("".join(values)):
        values = [value for value in values if is_storable(value)]
    if connection.dialect.name == "postgresql":
        array = bindparam(None, list(values), type_=ARRAY(column.type), unique=True)
        return column == func.any(array)
    # ASCII escapes keep the JSON free of anything SQLite could trip over.
    listed = func.json_each(json.dumps(list(values))).table_valued("value")
    return column.in_(select(listed.c.value))


def is_storable(value: str) -> bool:
    """Whether a text column can hold `value`: no NUL (PostgreSQL) and no lone surrogates."""
    if "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _copy(
    connection: Connection,
    table: Table,
    target: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """COPY into `target`, which has columns like those of `table`."""
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    statement = f"COPY {target} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    with (
        _sqlalchemy_errors(connection, statement),
        driver.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        copy.set_types([_postgresql_type(table, column) for column in columns])
        write = copy.write_row
        for row in rows:
            write(row)


def _postgresql_type(table: Table, column: str) -> str:
    match table.c[column].type:
        case Text():
            return "text"
        case BigInteger():
            return "int8"
        case Integer():
            return "int4"
        case Boolean():
            return "bool"
        case LargeBinary():
            return "bytea"
        case other:
            raise TypeError(f"{table.name}.{column}: no bulk insert for {other!r}")


@contextmanager
def _sqlalchemy_errors(connection: Connection, statement: str) -> Iterator[None]:
    """What SQLAlchemy does for the statements that go through it."""
    try:
        yield
    except psycopg.Error as error:
        driver = connection.connection.driver_connection
        lost = driver is not None and bool(getattr(driver, "closed", False))
        if lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement,
            None,
            error,
            psycopg.Error,
            connection_invalidated=lost,
            dialect=connection.dialect,
        ) from error
