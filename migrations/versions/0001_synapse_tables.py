"""Synapse's tables, as Synapse's schema version 94 has them.

On a database that Synapse created they are there already, and stay untouched in both directions.
"""

from alembic import op
from sqlalchemy import Connection, inspect

from migrations.sql import synapse_tables_postgresql, synapse_tables_sqlite

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATEMENTS = {
    "postgresql": synapse_tables_postgresql.STATEMENTS,
    "sqlite": synapse_tables_sqlite.STATEMENTS,
}


def upgrade() -> None:
    """Create tables, indexes, triggers and, on PostgreSQL, sequences."""
    connection = op.get_bind()
    if _belongs_to_synapse(connection):
        return
    for statement in _statements(connection):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop what `upgrade` created."""
    connection = op.get_bind()
    if _belongs_to_synapse(connection):
        return
    for statement in reversed(_statements(connection)):
        drop = _reverse(statement)
        if drop is not None:
            connection.exec_driver_sql(drop)


def _belongs_to_synapse(connection: Connection) -> bool:
    # Only Synapse keeps a list of the schema changes it has applied.
    return inspect(connection).has_table("applied_schema_deltas")


def _statements(connection: Connection) -> list[str]:
    return _STATEMENTS[connection.dialect.name].strip().split("\n\n")


def _reverse(statement: str) -> str | None:
    """The statement that undoes `statement`; None when dropping its table does."""
    match statement.replace("(", " ").split():
        case ["CREATE", "TABLE", name, *_]:
            return f"DROP TABLE {name}"
        case ["CREATE", "SEQUENCE", name, *_]:
            return f"DROP SEQUENCE {name}"
        case ["CREATE", "OR", "REPLACE", "FUNCTION", name, *_]:
            # Several tables share a function, and it goes before the triggers that call it.
            return f"DROP FUNCTION IF EXISTS {name} CASCADE"
        case ["ALTER", "TABLE", table, "ADD", "CONSTRAINT", name, *_]:
            return f"ALTER TABLE {table} DROP CONSTRAINT {name}"
        case _:
            return None
