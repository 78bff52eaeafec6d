"""Our homeserver on a real socket beside the simulated ones, with its worker running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from federation.simulator import SimulatedFederation
from tests.integration.resync.life.life import Life


@pytest.fixture
def make_life(tmp_path: Path, simulated: SimulatedFederation) -> Callable[[str], Life]:
    def make(database_url: str) -> Life:
        return Life(tmp_path, database_url, simulated)

    return make


@pytest.fixture
async def life(database_url: str, make_life: Callable[[str], Life]) -> AsyncIterator[Life]:
    """Our server, with a worker that runs; the test runs once per kind of database."""
    life = make_life(database_url)
    async with life.running():
        yield life


@pytest.fixture
async def life_on_sqlite(sqlite_url: str, make_life: Callable[[str], Life]) -> AsyncIterator[Life]:
    life = make_life(sqlite_url)
    async with life.running():
        yield life
