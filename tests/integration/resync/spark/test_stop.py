"""Jobs of rooms that nobody wants any more, and of workers that are shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from federation.simulator import SimulatedFederation
from tests.integration.resync.our_server import ALICE, OurServer, until
from tests.integration.resync.spark.working import (
    RESOLVED_ON_SPARK,
    SPARK,
    VERIFIED_ON_SPARK,
    active_jobs,
    finished,
    fork,
    frozen_python,
    held,
    jobs,
    python_workers,
    session_of,
    until_running,
    working,
)
from tests.integration.resync.truth import check_truth

pytestmark = pytest.mark.slow  # Each starts a JVM of its own.


@pytest.fixture
def ours(make_ours: Callable[..., OurServer], sqlite_url: str, no_session: None) -> OurServer:
    return make_ours(sqlite_url, spark=SPARK)


async def test_a_room_that_is_purged_or_left_stops_its_job_and_no_other(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    large = simulated.create_room("10", members=VERIFIED_ON_SPARK)
    forked = simulated.create_room("11", members=RESOLVED_ON_SPARK)
    last = simulated.create_room("12", members=VERIFIED_ON_SPARK)
    await ours.join(forked)
    await ours.receive(forked, fork(forked))
    async with ours.worker() as worker:
        with held(simulated) as release:
            async with working(worker):
                session = session_of(worker)
                jvm = session.jvm_pid
                with frozen_python(session):
                    release()
                    await until_running(session)
                    assert await worker.departures.purge(forked.room_id)
                    await until(lambda: not active_jobs(session) and not session.running_jobs)
                assert jobs(worker, "resolve", "cancelled") == 1

                with frozen_python(session):
                    await worker.join(large.room_id, simulated.server_names[:1], ALICE)
                    await until_running(session)
                    await worker.departures.leave(large.room_id, ALICE)
                    await until(lambda: not active_jobs(session) and not session.running_jobs)
                assert jobs(worker, "verify", "cancelled") == 1

                joined = await worker.join(last.room_id, simulated.server_names[:1], ALICE)
                await finished(worker, last)
                assert session.jvm_pid == jvm
        assert jobs(worker, "verify", "ok") >= 1
        assert jobs(worker, "resolve", "ok") == jobs(worker, "resolve", "retried") == 0
    assert last.room_id in ours.announced_rooms()
    assert ours.current_state(forked) == {}
    check_truth(ours, last, joined.join_event_id, [], rooms=len(ours.announced_rooms()))


@pytest.mark.parametrize("work", ["verify", "resolve"])
async def test_a_shutdown_stops_the_job_and_the_next_worker_goes_on(
    simulated: SimulatedFederation,
    ours: OurServer,
    make_ours: Callable[..., OurServer],
    sqlite_url: str,
    work: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    members = VERIFIED_ON_SPARK if work == "verify" else RESOLVED_ON_SPARK
    room = simulated.create_room("11", members=members)
    joined = await ours.join(room)
    events = fork(room) if work == "resolve" else []
    await ours.receive(room, events)
    async with ours.worker() as worker:
        with held(simulated) as release:
            async with working(worker) as running:
                session = session_of(worker)
                jvm = psutil.Process(session.jvm_pid)
                with frozen_python(session):
                    release()
                    await until_running(session)
                    processes = [jvm, *jvm.children(recursive=True), *python_workers(session)]
                    running.cancel()
                    async with asyncio.timeout(60):
                        await asyncio.gather(running, return_exceptions=True)
                    assert not jvm.is_running()
        assert jobs(worker, work, "cancelled") == 1
        assert jobs(worker, work, "ok") == jobs(worker, work, "failed") == 0
    await until(lambda: not any(process.is_running() for process in processes))
    # What is made for our own processes lasts as long as this one.
    assert [one for one in temporary.iterdir() if not one.name.startswith("pymp-")] == []
    assert ours.announced_rooms() == []

    without_spark = make_ours(sqlite_url)
    await without_spark.resync()

    check_truth(without_spark, room, joined.join_event_id, events)
