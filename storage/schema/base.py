"""What the table definitions share: the MetaData, types that differ by dialect, helpers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    DDL,
    JSON,
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    text,
)

metadata = MetaData()
"""Every table of this project."""

ROW_ID = BigInteger().with_variant(Integer(), "sqlite")
"""An integer that is the row id on SQLite, which knows it by the type name INTEGER only."""

TEXT_ARRAY = ARRAY(Text()).with_variant(JSON(), "sqlite")
"""A list of strings: `text[]`, or JSON on SQLite."""


def after_create(target: Table | MetaData, dialect: str, statement: str) -> None:
    """Have `statement` executed once `target` has been created on a database of this dialect."""
    # DDL has no annotations, and formats its statement with %.
    ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
    event.listen(target, "after_create", ddl.execute_if(dialect=dialect))


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index over the rows for which `where` is true."""
    return Index(
        name, *columns, unique=unique, postgresql_where=text(where), sqlite_where=text(where)
    )


def not_valid_foreign_key(
    column: Column[Any], target: Column[Any], *, name: str, deferred: bool = False
) -> None:
    """A foreign key that PostgreSQL has as NOT VALID: enforced for what is written from now on.

    CREATE TABLE cannot say NOT VALID, so PostgreSQL gets it by ALTER TABLE; SQLite, which knows
    no NOT VALID and no such ALTER TABLE, has it in the table.
    """
    table = column.table
    assert isinstance(table, Table)
    constraint = ForeignKeyConstraint(
        [column.name],
        [f"{target.table.name}.{target.name}"],
        name=name,
        deferrable=deferred or None,
        initially="DEFERRED" if deferred else None,
    )
    table.append_constraint(constraint.ddl_if(dialect="sqlite"))
    deferrable = " DEFERRABLE INITIALLY DEFERRED" if deferred else ""
    after_create(
        table,
        "postgresql",
        f"ALTER TABLE {table.name} ADD CONSTRAINT {name} FOREIGN KEY ({column.name})"
        f" REFERENCES {target.table.name} ({target.name}){deferrable} NOT VALID",
    )
