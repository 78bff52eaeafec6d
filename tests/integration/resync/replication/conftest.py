"""Fixtures: a worker's replication, running."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from storage.database import Database
from tests.integration.resync.replication.netcat import Worker, running


@pytest.fixture
async def worker(database: Database) -> AsyncIterator[Worker]:
    async with running(database) as started:
        yield started
