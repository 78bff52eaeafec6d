"""The chapter about a room that is large enough for Spark, and that forks while it is partial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from federation.simulator import BuiltEvent, Mix, RoomBuilder, SimulatedFederation
from federation.streaming import RawPdu
from resync.config import Config
from resync.demo.errors import DemoFailed
from resync.demo.narrator import Narrator
from resync.spark.engine import SparkEngine
from resync.worker import Worker

SPARK = {"master": "local[2]", "min_events": 3_000}
"""The demo's section `spark`: a room need not be as large as those that are worth it."""
MEMBERS = 6_000
ROOM_VERSION = "12"
FORKS = 2
JOINS_PER_FORK = 400
MERGES = 5
_SPARK_START_SECONDS = 60.0


def make_large_room(simulated: SimulatedFederation) -> RoomBuilder:
    """A room of more than `min_events` events. Blocks for a second."""
    room: RoomBuilder = simulated.create_room(
        ROOM_VERSION, members=MEMBERS, mix=Mix(banned=0.02), name="A large room"
    )
    return room


async def tell_of_large_room(
    narrator: Narrator,
    worker: Worker,
    config: Config,
    simulated: SimulatedFederation,
    room: RoomBuilder,
) -> None:
    """Joins `room`, lets it fork, resyncs it, and says what was done where.

    Raises:
        DemoFailed: the room does not end as it must.
    """
    engine = worker.spark
    assert engine is not None
    narrator.chapter("A large room")
    narrator.say(
        f"{room.room_id} has room version {ROOM_VERSION}, {len(room.events):,} events and "
        f"{len(room.current_state()):,} entries in its state."
    )
    # As it is with large rooms: the answer takes its time, and the room goes on meanwhile.
    resident = simulated.residents[0]
    resident.faults.stall("state_ids", containing=room.room_id)
    user_id = f"@alice:{config.server_name}"
    started = time.monotonic()
    joined = await worker.join(room.room_id, simulated.server_names[:1], user_id)
    narrator.say(f"{user_id} joined in {time.monotonic() - started:.2f} s.")
    if not joined.partial:
        raise DemoFailed("the join was not partial")
    newest = await _fork(narrator, worker, simulated, room)
    await _wait_for_spark(narrator, engine, config)
    resident.faults.clear("state_ids")
    await narrator.follow(worker, room)
    _tell_engines(narrator, worker)
    await narrator.compare(config.database, room, newest)


async def _fork(
    narrator: Narrator, worker: Worker, simulated: SimulatedFederation, room: RoomBuilder
) -> str:
    """Two halves of the room go on without each other, then meet; returns the newest event."""
    events: list[BuiltEvent] = []
    tips: list[str] = []
    start = list(room.forward_extremities)
    for fork in range(FORKS):
        tip = start
        server_name = simulated.server_names[fork]
        for number in range(JOINS_PER_FORK):
            event = room.join(f"@late{number}:{server_name}", prev_events=tip)
            events.append(event)
            tip = [event.event_id]
        tips += tip
    merges = [
        room.message(f"Message {number} after the forks met", prev_events=tips)
        for number in range(MERGES)
    ]
    last = room.message("The room is one again", prev_events=[e.event_id for e in merges])
    await _receive(worker, room, [*events, *merges, last])
    narrator.say(
        f"Its server takes its time to tell the state. Meanwhile the room forked: {JOINS_PER_FORK} "
        f"more users joined on each of {FORKS} sides, and {MERGES} messages follow both."
    )
    return last.event_id


async def _receive(worker: Worker, room: RoomBuilder, events: Sequence[BuiltEvent]) -> None:
    pdus = [RawPdu(room.pdu(event.event_id), event.text) for event in events]
    received = await worker.receiver.receive(room.room_id, pdus)
    if len(received.stored) != len(events):
        raise DemoFailed(f"events were refused: {received.refused}")


async def _wait_for_spark(narrator: Narrator, engine: SparkEngine, config: Config) -> None:
    assert config.spark is not None
    try:
        async with asyncio.timeout(_SPARK_START_SECONDS):
            is_ready = await engine.wait_until_started()
    except TimeoutError:
        is_ready = False
    if is_ready:
        narrator.say(
            f"Spark has started in the background, with the master {config.spark.master}. It gets "
            f"what has at least {config.spark.min_events:,} events here (spark.min_events)."
        )
    else:
        narrator.say(f"There is no Spark. {engine.unavailable}.")


def _tell_engines(narrator: Narrator, worker: Worker) -> None:
    """What the worker counted."""

    def count(name: str, **labels: str) -> int:
        return int(worker.metrics.registry.get_sample_value(name, labels) or 0)

    for work, done, what in (
        ("verify", "Hashes and signatures", "events"),
        ("resolve", "State resolution", "changes of state"),
    ):
        on_spark = count("resync_engine_events_total", work=work, engine="spark")
        in_process = count("resync_engine_events_total", work=work, engine="process")
        jobs, failed = (
            count("resync_spark_jobs_total", work=work, result=result)
            for result in ("ok", "failed")
        )
        if jobs:
            narrator.say(f"{done}: {on_spark:,} {what} on Spark. Spark jobs: {jobs}.")
        if failed:
            narrator.say(f"{done}: Spark jobs that failed and were done in process: {failed}.")
        if in_process:
            narrator.say(f"{done}: {in_process:,} {what} in process.")
        if not jobs + failed + in_process:
            raise DemoFailed(f"the room was not large enough for Spark: {work}")
