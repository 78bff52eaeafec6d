"""Migrations: up, down, and the same tables as the schema and as Synapse's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from storage import migrate
from storage.database import Database
from storage.schema import metadata

FACTS = json.loads((Path(__file__).parents[2] / "data" / "synapse_tables.json").read_text())

# What a PostgreSQL database is, for comparing two of them.
POSTGRESQL_CATALOGUE = {
    "columns": """
        SELECT table_name || '.' || column_name,
               concat_ws(' ', data_type, udt_name, character_maximum_length, is_nullable,
                         column_default)
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "constraints": """
        SELECT conrelid::regclass || '.' || conname,
               pg_get_constraintdef(oid) || condeferrable || condeferred || convalidated
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "triggers": """
        SELECT tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE NOT tgisinternal""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace""",
    "sequences": """
        SELECT sequencename, concat_ws(' ', data_type, start_value, increment_by, last_value)
        FROM pg_sequences WHERE schemaname = 'public'""",
}
SQLITE_CATALOGUE = {
    "everything": "SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL"
}


def _catalogue(connection: Connection) -> dict[str, dict[str, str]]:
    """What the database has, without alembic's own table, with white space made equal."""
    postgresql = connection.dialect.name == "postgresql"
    queries = POSTGRESQL_CATALOGUE if postgresql else SQLITE_CATALOGUE
    return {
        kind: {
            name: " ".join(definition.split())
            for name, definition in connection.execute(text(query))
            if migrate.VERSION_TABLE not in name
        }
        for kind, query in queries.items()
    }


def _run(url: str, function: Any, *args: Any) -> Any:
    database = Database(url, pool_size=1)
    try:
        return database.run_sync(function, *args)
    finally:
        database.close_sync()


@pytest.fixture
def second_empty_url(
    empty_database_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[str]:
    """Another database of the same kind as `empty_database_url`."""
    if empty_database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'second.db'}"
        return
    server = request.getfixturevalue("postgresql_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)


def test_up_and_down_again(empty_database_url: str) -> None:
    url = empty_database_url
    before = _run(url, _catalogue)
    assert migrate.current(url) is None
    assert not migrate.is_current(url)
    migrate.upgrade(url)
    full = _run(url, _catalogue)
    assert migrate.is_current(url)
    migrate.upgrade(url)
    assert _run(url, _catalogue) == full
    migrate.downgrade(url, "0001")
    assert migrate.current(url) == "0001"
    assert not migrate.is_current(url)
    migrate.downgrade(url, "base")
    assert migrate.current(url) is None
    assert _run(url, _catalogue) == before
    migrate.upgrade(url)
    assert _run(url, _catalogue) == full


def test_migrations_and_schema_are_the_same(empty_database_url: str, second_empty_url: str) -> None:
    """Every table, column, constraint, index, trigger, function and sequence."""
    migrate.upgrade(empty_database_url)
    _run(second_empty_url, metadata.create_all)
    migrated = _run(empty_database_url, _catalogue)
    created = _run(second_empty_url, _catalogue)
    assert migrated == created
    assert sum(len(found) for found in migrated.values()) > 100


def test_alembic_finds_nothing_to_migrate(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)

    def known(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
        return (kind, name) not in {
            # On SQLite two tables cannot refer to each other, see storage/schema/servers.py,
            ("foreign_key_constraint", "worker_read_write_locks_mode_foreign"),
            # and the stream ordering is the row id, see storage/schema/events.py.
            ("index", "events_stream_ordering"),
        }

    def compare(connection: Connection) -> list[Any]:
        options = {
            "version_table": migrate.VERSION_TABLE,
            "compare_type": True,
            "include_object": known if connection.dialect.name == "sqlite" else None,
        }
        context = MigrationContext.configure(
            connection, opts={key: value for key, value in options.items() if value is not None}
        )
        return list(compare_metadata(context, metadata))

    assert _run(empty_database_url, compare) == []


def test_a_failed_migration_leaves_nothing(empty_database_url: str) -> None:
    """One table is in the way of the last statements: all others are rolled back."""

    def obstruct(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE worker_locks (mine integer)"))

    _run(empty_database_url, obstruct)
    with pytest.raises(Exception, match="worker_locks"):
        migrate.upgrade(empty_database_url)
    assert migrate.current(empty_database_url) is None
    assert _run(empty_database_url, lambda c: inspect(c).get_table_names()) == ["worker_locks"]


def test_tables_of_synapse_are_left_alone(empty_database_url: str) -> None:
    """On a database that Synapse created, only our tables come and go."""

    def pretend(connection: Connection) -> None:
        metadata.create_all(connection)
        for name in [name for name in metadata.tables if name.startswith("resync_")]:
            connection.execute(text(f"DROP TABLE {name}"))
        connection.execute(text("CREATE TABLE applied_schema_deltas (version integer)"))

    _run(empty_database_url, pretend)
    before = _run(empty_database_url, _catalogue)
    migrate.upgrade(empty_database_url)
    tables = _run(empty_database_url, lambda c: inspect(c).get_table_names())
    assert "resync_jobs" in tables
    migrate.downgrade(empty_database_url, "base")
    assert _run(empty_database_url, _catalogue) == before


def test_a_path_with_signs_that_urls_and_templates_know(tmp_path: Path) -> None:
    directory = tmp_path / "50% of it"
    directory.mkdir()
    url = f"sqlite:///{directory / 'a b.db'}"
    migrate.upgrade(url)
    assert migrate.is_current(url)


# The facts of Synapse's own database. The few differences are on purpose and named here.


def _facts_of(connection: Connection, table: str) -> dict[str, Any]:
    def rows(query: str) -> list[Any]:
        return list(connection.execute(text(query), {"table": table}))

    indexes = {}
    for name, definition in rows(
        "SELECT indexname, indexdef FROM pg_indexes"
        " WHERE schemaname = 'public' AND tablename = :table"
    ):
        match = re.fullmatch(r"CREATE (UNIQUE )?INDEX \S+ ON \S+ USING btree (.*)", definition)
        assert match is not None
        indexes[name] = (match[1] or "") + match[2]
    return {
        "columns": {
            name: [type_, nullable == "YES", default]
            for name, type_, nullable, default in rows(
                "SELECT column_name, data_type, is_nullable, column_default"
                " FROM information_schema.columns"
                " WHERE table_schema = 'public' AND table_name = :table"
            )
        },
        "constraints": {
            row.conname: row.definition
            for row in rows(
                "SELECT conname, pg_get_constraintdef(oid) AS definition FROM pg_constraint"
                " WHERE conrelid = CAST(:table AS regclass)"
            )
        },
        "indexes": indexes,
        "triggers": [
            name
            for (name,) in rows(
                "SELECT tgname FROM pg_trigger WHERE tgrelid = CAST(:table AS regclass)"
                " AND NOT tgisinternal ORDER BY tgname"
            )
        ],
    }


@pytest.fixture(scope="module")
def facts(postgresql_databases: Any, postgresql_server: Any) -> Iterator[dict[str, Any]]:
    """The facts of our database, in the form of the fact sheet."""
    name = postgresql_databases.take()

    def load(connection: Connection) -> dict[str, Any]:
        return {
            "tables": {table: _facts_of(connection, table) for table in FACTS["tables"]},
            "sequences": {
                sequence: {"start": start, "type": type_}
                for sequence, start, type_ in connection.execute(
                    text("SELECT sequencename, start_value, data_type::text FROM pg_sequences")
                )
            },
        }

    yield _run(postgresql_server.url(name), load)
    postgresql_databases.give_back(name)


@pytest.mark.parametrize("table", sorted(FACTS["tables"]))
def test_tables_are_those_of_synapse(facts: dict[str, Any], table: str) -> None:
    assert facts["tables"][table] == FACTS["tables"][table]


def test_sequences_are_those_of_synapse(facts: dict[str, Any]) -> None:
    assert facts["sequences"] == FACTS["sequences"]


@pytest.mark.parametrize(
    ("sequence", "first"),
    [
        ("un_partial_stated_room_stream_sequence", 2),
        ("un_partial_stated_event_stream_sequence", 2),
        ("cache_invalidation_stream_seq", 2),
        ("events_stream_seq", 2),
        ("thread_subscriptions_sequence", 2),
        ("state_group_id_seq", 1),
    ],
)
async def test_first_ids(postgresql_database: Database, sequence: str, first: int) -> None:
    def draw(connection: Connection) -> Any:
        return connection.scalar(text(f"SELECT nextval('{sequence}')"))

    assert await postgresql_database.run(draw) == first


async def test_every_table_of_synapse_is_on_sqlite_too(sqlite_database: Database) -> None:
    def columns(connection: Connection) -> dict[str, set[str]]:
        inspector = inspect(connection)
        return {
            table: {column["name"] for column in inspector.get_columns(table)}
            for table in inspector.get_table_names()
        }

    found = await sqlite_database.read(columns)
    for table, expected in FACTS["tables"].items():
        assert found[table] == expected["columns"].keys()
