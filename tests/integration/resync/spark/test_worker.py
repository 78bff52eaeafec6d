"""A worker with Spark: rooms that go through it, a JVM that dies, a machine without Java."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from federation.simulator import SimulatedFederation
from resync.progress import Phase
from resync.worker import Worker
from tests.integration.resync.our_server import OurServer
from tests.integration.resync.spark.conftest import TEST_SETTINGS
from tests.integration.resync.truth import check_truth

SPARK = {"master": "local[2]", "min_events": 500, "settings": TEST_SETTINGS}


def metric(worker: Worker, name: str) -> float:
    lines = worker.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """The worker runs, its session is warm."""
    work = asyncio.create_task(worker.run())
    try:
        await asyncio.sleep(0)
        session = worker._spark._session
        assert await asyncio.to_thread(session.wait_until_started), session.unavailable
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
def ours(make_ours: Callable[..., OurServer], sqlite_url: str, no_session: None) -> OurServer:
    return make_ours(sqlite_url, spark=SPARK)


async def test_a_large_room_goes_through_spark(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=900)
    phases = set()
    async with ours.worker() as worker:
        async with working(worker), worker.progress.subscribe() as changes:
            joined = await worker.join(
                room.room_id, simulated.server_names[:1], f"@alice:{ours.settings['server_name']}"
            )
            async for progress in changes:
                phases.add(progress.phase)
                if progress.finished:
                    break
        assert metric(worker, 'resync_spark_jobs_total{result="ok",work="verify"}') >= 1
        assert metric(worker, 'resync_engine_events_total{engine="spark",work="verify"}') >= 900
        assert worker.loop_monitor is not None
    check_truth(ours, room, joined.join_event_id, [])
    assert Phase.DONE in phases


async def test_a_killed_jvm_costs_a_retry_and_nothing_else(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("11", members=900)
    async with ours.worker() as worker:
        async with working(worker), worker.progress.subscribe() as changes:
            first = worker._spark._session.jvm_pid
            # The next job finds a session that looks alive and is not.
            os.kill(first, signal.SIGSTOP)
            joined = await worker.join(
                room.room_id, simulated.server_names[:1], f"@alice:{ours.settings['server_name']}"
            )
            while not worker._spark._session.running_jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            async for progress in changes:
                if progress.finished:
                    break
            assert worker._spark._session.jvm_pid not in (None, first)
        assert metric(worker, 'resync_spark_sessions_total{event="lost"}') == 1
        assert metric(worker, 'resync_spark_jobs_total{result="retried",work="verify"}') == 1
        assert metric(worker, 'resync_spark_jobs_total{result="ok",work="verify"}') >= 1
    check_truth(ours, room, joined.join_event_id, [])


async def test_without_java_the_worker_resyncs_in_process(
    simulated: SimulatedFederation, ours: OurServer, monkeypatch, tmp_path, capfd
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    room = simulated.create_room("10", members=600)
    joined = await ours.join(room)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [])
    told = "".join(capfd.readouterr())
    assert told.count("No Java was found") >= 1
    assert "install Java 17" in told
