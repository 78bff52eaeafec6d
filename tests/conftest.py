"""Databases for tests: a fresh, migrated one for each, on SQLite and on a real PostgreSQL.

PostgreSQL is the server at RESYNC_TEST_POSTGRESQL; a test that needs it fails when it is not
there. Databases are copied from a template that is migrated once per test process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from storage.database import Database
from storage.migrate import upgrade

POSTGRESQL = os.environ.get(
    "RESYNC_TEST_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/postgres"
)


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
        self._execute(f'CREATE DATABASE {name} TEMPLATE {template} LC_COLLATE "C" LC_CTYPE "C"')
        self._names.append(name)
        return name

    def drop(self, name: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._names.remove(name)

    def drop_all(self) -> None:
        for name in list(self._names):
            self.drop(name)

    def _execute(self, statement: str) -> None:
        try:
            connection = psycopg.connect(
                self._url.render_as_string(hide_password=False),
                autocommit=True,
                connect_timeout=5,
            )
        except psycopg.OperationalError as error:
            pytest.fail(
                f"the tests need a PostgreSQL server at {self._url.render_as_string()}"
                f" (set RESYNC_TEST_POSTGRESQL to use another): {error}",
                pytrace=False,
            )
        with contextlib.closing(connection):
            connection.execute(statement)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(POSTGRESQL)
    yield server
    server.drop_all()


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: PostgresqlServer) -> str:
    name = postgresql_server.create()
    upgrade(postgresql_server.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer, postgresql_template: str) -> Iterator[str]:
    """URL of a fresh, migrated PostgreSQL database."""
    name = postgresql_server.create(postgresql_template)
    yield postgresql_server.url(name)
    postgresql_server.drop(name)


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
