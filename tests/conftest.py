"""Databases for tests: a fresh, migrated one for each, on SQLite and on a real PostgreSQL.

PostgreSQL is the server at RESYNC_TEST_POSTGRESQL; a test that needs it fails when it is not
there. Migrations run once per test process: SQLite files are copied, PostgreSQL databases emptied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, make_url

from storage.database import Database
from storage.migrate import upgrade

POSTGRESQL = os.environ.get(
    "RESYNC_TEST_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/postgres"
)


_CLEAN = """
DO $$
DECLARE
    name text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN
        SELECT tablename FROM pg_tables WHERE schemaname = 'public'
        AND tablename NOT IN ('schema_version', 'resync_alembic_version')
    LOOP
        IF pg_relation_size(name::regclass) > 1000000 THEN
            EXECUTE format('TRUNCATE %I CASCADE', name);
        ELSE
            EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
END $$
"""
_SEQUENCES = "SELECT sequencename, last_value, start_value FROM pg_sequences"
_DISCONNECT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class PostgresqlServer:
    """Creates and drops databases on the test server."""

    def __init__(self, url: str) -> None:
        self._url: URL = make_url(url).set(drivername="postgresql")
        self._names: list[str] = []

    def url(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def create(self, template: str = "template0") -> str:
        """Create a database and return its name. Collation C, as Synapse asks for."""
        name = f"resync_test_{uuid.uuid4().hex[:16]}"
        with self.connect() as connection:
            connection.execute(
                f'CREATE DATABASE {name} TEMPLATE {template} LC_COLLATE "C" LC_CTYPE "C"'
            )
        self._names.append(name)
        return name

    def drop(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._names.remove(name)

    def drop_all(self) -> None:
        for name in list(self._names):
            self.drop(name)

    @contextlib.contextmanager
    def connect(self, name: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        url = self._url if name is None else self._url.set(database=name)
        try:
            connection = psycopg.connect(
                url.render_as_string(hide_password=False), autocommit=True, connect_timeout=5
            )
        except psycopg.OperationalError as error:
            pytest.fail(
                f"the tests need a PostgreSQL server at {url.render_as_string()}"
                f" (set RESYNC_TEST_POSTGRESQL to use another): {error}",
                pytrace=False,
            )
        with contextlib.closing(connection):
            yield connection


class MigratedDatabases:
    """Migrated databases without rows. Emptying one is much faster than creating one."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self._template = server.create()
        upgrade(server.url(self._template))
        with server.connect(self._template) as connection:
            self._sequences = connection.execute(_SEQUENCES).fetchall()
        self._unused: list[str] = []

    def take(self) -> str:
        return self._unused.pop() if self._unused else self._server.create(self._template)

    def give_back(self, name: str) -> None:
        """Empty the database for the next test; connections that are left are cut."""
        with self._server.connect(name) as connection:
            while connection.execute(_DISCONNECT).fetchall():
                time.sleep(0.01)
            connection.execute(_CLEAN)
            for sequence, last_value, start_value in self._sequences:
                connection.execute(
                    "SELECT setval(%s, %s, %s)",
                    (sequence, last_value or start_value, last_value is not None),
                )
        self._unused.append(name)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(POSTGRESQL)
    yield server
    server.drop_all()


@pytest.fixture(scope="session")
def postgresql_databases(postgresql_server: PostgresqlServer) -> MigratedDatabases:
    return MigratedDatabases(postgresql_server)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def postgresql_url(
    postgresql_server: PostgresqlServer, postgresql_databases: MigratedDatabases
) -> Iterator[str]:
    """URL of a fresh, migrated PostgreSQL database."""
    name = postgresql_databases.take()
    yield postgresql_server.url(name)
    postgresql_databases.give_back(name)


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """URL of a fresh, migrated SQLite database."""
    path = tmp_path / "test.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh, migrated database; the test runs once per kind of database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without any table; the test runs once per kind of database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresqlServer = request.getfixturevalue("postgresql_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)


async def _open(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A fresh, migrated database; the test runs once per kind of database."""
    async for opened in _open(database_url):
        yield opened


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncIterator[Database]:
    async for opened in _open(sqlite_url):
        yield opened


@pytest.fixture
async def postgresql_database(postgresql_url: str) -> AsyncIterator[Database]:
    async for opened in _open(postgresql_url):
        yield opened
