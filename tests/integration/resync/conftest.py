"""A simulated federation over real HTTPS, and our server beside it on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from federation.simulator import SimulatedFederation

pytest.register_assert_rewrite("tests.integration.resync.truth")

from tests.integration.resync.our_server import OurServer  # noqa: E402


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedFederation]:
    """Two homeservers that listen, and one that nobody can reach."""
    async with SimulatedFederation(servers=2, unreachable=1) as federation:
        yield federation


@pytest.fixture
def make_ours(tmp_path: Path, simulated: SimulatedFederation) -> Callable[..., OurServer]:
    """Makes our server: `make_ours(database_url, **config)`."""

    def make(database_url: str, **config: Any) -> OurServer:
        return OurServer(tmp_path, database_url, simulated, **config)

    return make


@pytest.fixture
def ours(database_url: str, make_ours: Callable[..., OurServer]) -> OurServer:
    """Our server; the test runs once per kind of database."""
    return make_ours(database_url)


@pytest.fixture
def ours_on_sqlite(sqlite_url: str, make_ours: Callable[..., OurServer]) -> OurServer:
    return make_ours(sqlite_url)
