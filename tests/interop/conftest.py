"""One Synapse for the whole session; the end of its log with every failed test."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.interop.loopback import postgresql_database
from tests.interop.rooms import register_members
from tests.interop.synapse_oracle import SynapseOracle
from tests.interop.synapse_server import SynapseServer, User

DEFAULT_POSTGRESQL = "postgresql://postgres@127.0.0.1:5432/postgres"


@pytest.fixture(scope="session")
def postgresql_url() -> str:
    """The PostgreSQL server on which tests create databases of their own."""
    return os.environ.get("RESYNC_TEST_POSTGRESQL", DEFAULT_POSTGRESQL)


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SynapseServer]:
    with SynapseServer(tmp_path_factory.mktemp("synapse")) as server:
        yield server


@pytest.fixture(scope="session")
def creator(synapse: SynapseServer) -> User:
    return synapse.register("creator")


@pytest.fixture(scope="session")
def members(synapse: SynapseServer) -> list[User]:
    return register_members(synapse)


@pytest.fixture(params=["sqlite", "postgresql"])
def our_database_url(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql_url: str
) -> Iterator[str]:
    """An empty database for our side: a new SQLite file or a new PostgreSQL database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'resync.db'}"
    else:
        with postgresql_database(postgresql_url, "interop_resync") as url:
            yield url


@pytest.fixture(scope="session")
def oracle() -> Iterator[SynapseOracle]:
    """Synapse's state resolution and authorization rules, without a server."""
    with SynapseOracle() as synapse:
        yield synapse


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    synapse = getattr(item, "funcargs", {}).get("synapse")
    if report.failed and synapse is not None:
        report.sections.append(("Synapse", synapse.log_tail()))
    return report
