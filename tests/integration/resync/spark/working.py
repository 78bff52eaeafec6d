"""Workers whose Spark session is warm, rooms for them, and ways to disturb their jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import psutil

from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation
from resync.spark.session import WarmSession
from resync.worker import Worker
from tests.integration.resync.our_server import until
from tests.integration.resync.spark.conftest import TEST_SETTINGS
from tests.integration.resync.truth import append

SPARK = {"master": "local[2]", "min_events": 500, "settings": TEST_SETTINGS}
VERIFIED_ON_SPARK = 900
"""Members of a room that is large enough for Spark to check its signatures."""
RESOLVED_ON_SPARK = 300
"""Members of a room that is not, until it has forked as `fork` lets it."""


def metric(worker: Worker, name: str) -> float:
    """The sum of the samples whose name and labels begin with `name`."""
    lines = worker.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def jobs(worker: Worker, work: str, result: str) -> float:
    """How many Spark jobs ended so."""
    return metric(worker, f'resync_spark_jobs_total{{result="{result}",work="{work}"}}')


def session_of(worker: Worker) -> WarmSession:
    assert worker.spark is not None
    return worker.spark._session


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """The worker runs, its session is warm."""
    work = asyncio.create_task(worker.run())
    try:
        await asyncio.sleep(0)
        assert worker.spark is not None
        assert await worker.spark.wait_until_started(), worker.spark.unavailable
        yield work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@contextmanager
def held(simulated: SimulatedFederation) -> Iterator[Callable[[], None]]:
    """No resync gets beyond its first question until what is given is called."""

    def release() -> None:
        for resident in simulated.residents:
            resident.faults.clear("state_ids")

    for resident in simulated.residents:
        resident.faults.stall("state_ids")
    try:
        yield release
    finally:
        release()


async def finished(worker: Worker, room: RoomBuilder) -> None:
    """Waits until the room is fully stated."""
    async with asyncio.timeout(120), worker.progress.subscribe() as changes:
        async for progress in changes:
            if progress.room_id == room.room_id and progress.finished:
                return


def fork(room: RoomBuilder, users: int = 60, merges: int = 5) -> list[BuiltEvent]:
    """The room forks: `users` change their names on both sides; `merges` messages follow both."""
    events, tips = [], []
    start = list(room.forward_extremities)
    members = [key[1] for key, _ in room.current_state().items() if key[0] == "m.room.member"]
    joined = [user for user in members if room.membership(user) == "join"]
    for side in range(2):
        tip = start
        for user_id in joined[:users]:
            events.append(
                append(
                    room,
                    "m.room.member",
                    {"membership": "join", "displayname": f"On side {side}"},
                    prev_events=tip,
                    sender=user_id,
                    state_key=user_id,
                )
            )
            tip = [events[-1].event_id]
        tips += tip
    for number in range(merges):
        content = {"body": f"Message {number}"}
        events.append(
            append(room, "m.room.message", content, prev_events=tips, sender=room.creator)
        )
    assert not any(event.rejected for event in events)
    return events


def python_workers(session: WarmSession) -> list[psutil.Process]:
    """The processes in which Spark runs Python tasks; idle ones wait for the next task."""
    return [worker for daemon in python_daemons(session) for worker in daemon.children()]


def python_daemons(session: WarmSession) -> list[psutil.Process]:
    """The processes that start them."""
    jvm = psutil.Process(session.jvm_pid)
    return [child for child in jvm.children() if "pyspark.daemon" in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        # It is over, and the JVM has not noticed.
        return []


@contextmanager
def frozen_python(session: WarmSession) -> Iterator[list[psutil.Process]]:
    """A job that begins in the block does not end: one of its tasks gets a process that hangs."""
    workers = python_workers(session)
    assert workers
    for worker in workers:
        worker.suspend()
    try:
        yield workers
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()


def active_jobs(session: WarmSession) -> list[int]:
    """Spark's own list of what it runs."""
    jvm = session._jvm
    assert jvm is not None
    return list(jvm.context.statusTracker().getActiveJobsIds())


async def until_running(session: WarmSession) -> None:
    """Waits until Spark runs a job."""
    await until(lambda: active_jobs(session))
