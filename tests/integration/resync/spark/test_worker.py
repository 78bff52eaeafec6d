"""A worker with Spark: rooms that go through it, a JVM that dies, a machine without Java."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from federation.simulator import SimulatedFederation
from resync.progress import Phase
from resync.spark.session import WarmSession
from tests.integration.resync.our_server import ALICE, OurServer
from tests.integration.resync.spark.working import (
    RESOLVED_ON_SPARK,
    SPARK,
    VERIFIED_ON_SPARK,
    finished,
    fork,
    held,
    jobs,
    metric,
    python_workers,
    session_of,
    working,
)
from tests.integration.resync.truth import check_truth

pytestmark = pytest.mark.slow  # Each starts JVMs of its own.


@pytest.fixture
def ours(make_ours: Callable[..., OurServer], sqlite_url: str, no_session: None) -> OurServer:
    return make_ours(sqlite_url, spark=SPARK)


async def test_a_large_room_goes_through_spark(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=VERIFIED_ON_SPARK)
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


async def test_the_states_of_a_forked_room_are_resolved_on_spark(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("11", members=RESOLVED_ON_SPARK)
    joined = await ours.join(room)
    events = fork(room)
    await ours.receive(room, events)
    async with ours.worker() as worker:
        with held(simulated) as release:
            async with working(worker):
                release()
                await finished(worker, room)
        assert jobs(worker, "resolve", "ok") >= 1
        assert metric(worker, 'resync_engine_events_total{engine="spark",work="resolve"}') >= 600
        assert metric(worker, 'resync_engine_events_total{engine="process"') == 0
        assert jobs(worker, "resolve", "retried") + jobs(worker, "resolve", "failed") == 0
    check_truth(ours, room, joined.join_event_id, events)


async def test_a_killed_jvm_costs_a_retry_and_nothing_else(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("11", members=VERIFIED_ON_SPARK)
    async with ours.worker() as worker:
        async with working(worker), worker.progress.subscribe() as changes:
            first = session_of(worker).jvm_pid
            # The next job finds a session that looks alive and is not.
            os.kill(first, signal.SIGSTOP)
            joined = await worker.join(
                room.room_id, simulated.server_names[:1], f"@alice:{ours.settings['server_name']}"
            )
            while not session_of(worker).running_jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            async for progress in changes:
                if progress.finished:
                    break
            assert session_of(worker).jvm_pid not in (None, first)
        assert metric(worker, 'resync_spark_sessions_total{event="lost"}') == 1
        assert metric(worker, 'resync_spark_jobs_total{result="retried",work="verify"}') == 1
        assert metric(worker, 'resync_spark_jobs_total{result="ok",work="verify"}') >= 1
    check_truth(ours, room, joined.join_event_id, [])


async def test_killed_executors_cost_a_retry_and_then_the_room_is_done_in_process(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """What the kernel does to a Python process of Spark that takes too much memory."""
    once = simulated.create_room("12", members=VERIFIED_ON_SPARK)
    always = simulated.create_room("11", members=VERIFIED_ON_SPARK)
    async with ours.worker() as worker, working(worker):
        session = session_of(worker)
        jvm = session.jvm_pid
        join_once = await worker.join(once.room_id, simulated.server_names[:1], ALICE)
        await kill_python(session, until=lambda: jobs(worker, "verify", "retried") == 1)
        await finished(worker, once)
        assert jobs(worker, "verify", "retried") == 1
        assert jobs(worker, "verify", "ok") >= 1
        assert jobs(worker, "verify", "failed") == 0

        join_always = await worker.join(always.room_id, simulated.server_names[:1], ALICE)
        await kill_python(session, until=lambda: jobs(worker, "verify", "failed") == 1)
        await finished(worker, always)
        assert jobs(worker, "verify", "retried") == 2
        # It was not the JVM's fault.
        assert session.jvm_pid == jvm
    check_truth(ours, once, join_once.join_event_id, [], rooms=2)
    check_truth(ours, always, join_always.join_event_id, [], rooms=2)


async def kill_python(session: WarmSession, *, until: Callable[[], bool]) -> None:
    """Kills every process in which Spark wants to run Python."""
    async with asyncio.timeout(60):
        while not until():
            for process in python_workers(session):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await asyncio.sleep(0.005)


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
