"""A worker that is killed at any moment loses nothing: its successor finishes the same work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import psutil
import pytest

from federation.simulator import BuiltEvent, Resident, RoomBuilder, SimulatedFederation
from federation.simulator.faults import Fault, Stall, StallMidway
from tests.integration.resync.our_server import OurServer, Process, until
from tests.integration.resync.truth import Quarrel, check_truth

MEMBERS = 120


class PartialRoom(NamedTuple):
    """A room that was joined partially and has received events since."""

    room: RoomBuilder
    join_event_id: str
    events: list[BuiltEvent]


async def join_room(simulated: SimulatedFederation, ours: OurServer, seed: int) -> PartialRoom:
    """A room with a fork, a conflict and a few gaps behind the join."""
    room = simulated.create_room("10", members=MEMBERS)
    users = [f"@user{number}:{simulated.server_names[0]}" for number in (3, 6)]
    joined = await ours.join(room)
    quarrel = Quarrel(room, [user for user in users if room.membership(user) == "join"], seed)
    quarrel.go_on(9)
    quarrel.merge()
    events = [event for number, event in enumerate(quarrel.events) if number not in (2, 5, 8)]
    received = await ours.receive(room, events, batch=1)
    assert received.refused == []
    return PartialRoom(room, joined.join_event_id, events)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("sqlite", 5),
        ("postgresql", 5),
        pytest.param("sqlite", 20, marks=pytest.mark.slow),
        pytest.param("postgresql", 20, marks=pytest.mark.slow),
    ],
)
async def test_killed_at_random_moments(
    kind: str,
    kills: int,
    simulated: SimulatedFederation,
    make_ours: Callable[..., OurServer],
    request: pytest.FixtureRequest,
) -> None:
    """Each room is killed once in the middle; the runs after it pick up what was left.

    Half of the moments are times since the resync began, up to how long one takes undisturbed.
    The others are places in what goes over the wire: there the resident falls silent.
    """
    database_url: str = request.getfixturevalue(f"{kind}_url")
    ours = make_ours(database_url, resync={"lease_ttl_seconds": 0.5})
    chance = random.Random(20)
    rooms = [await join_room(simulated, ours, seed=0)]
    undisturbed = await ours.start("worker", "--once")
    assert await undisturbed.wait() == 0, undisturbed.errors
    duration: float = undisturbed.logged("room is fully stated")[0]["seconds"]

    interrupted = 0
    helpers = 0
    for kill in range(kills):
        joined = await join_room(simulated, ours, seed=kill + 1)
        rooms.append(joined)
        worker = await ours.start("worker", "--once")
        if kill % 2:
            # Stratified, so that every part of a resync has its share.
            await until_started(worker, joined.room)
            await asyncio.sleep(duration * (kill + 2 * chance.random()) / kills)
        else:
            await until_silent(simulated.residents[0], worker, joined.room, chance)
        helpers += await kill_with_all_helpers(worker)
        simulated.residents[0].faults.clear()
        interrupted += joined.room.room_id in partial_rooms(ours)

    for _ in range(5):
        # Leases of the dead last for half a second; `--once` does not wait for them.
        await asyncio.sleep(0.5)
        await ours.run("worker", "--once")
        if not partial_rooms(ours):
            break
    unfinished = "SELECT room_id, last_error FROM resync_jobs WHERE completed_ts IS NULL"
    assert ours.query(unfinished) == []
    for room, join_event_id, events in rooms:
        check_truth(ours, room, join_event_id, events, rooms=len(rooms))
    partial_events = sum(1 + len(joined.events) for joined in rooms)
    assert len(ours.announced_events()) == partial_events
    # Otherwise nothing was tested.
    assert interrupted >= kills / 2
    assert helpers > 0


async def until_started(worker: Process, room: RoomBuilder) -> None:
    await until(
        lambda: any(line.get("room_id") == room.room_id for line in worker.logged("resync started"))
    )


async def until_silent(
    resident: Resident, worker: Process, room: RoomBuilder, chance: random.Random
) -> None:
    """Has the resident fall silent at a random point of the room's resync; waits for that."""
    endpoint = chance.choice(("state_ids", "state", "state", "event"))
    if endpoint == "state":
        silence: Fault = StallMidway(chance.random())
        resident.faults.add("state", silence, containing=room.room_id, times=1)
    elif endpoint == "state_ids":
        skip = chance.randrange(4)
        resident.faults.add("state_ids", Stall(), containing=room.room_id, times=1, skip=skip)
    else:
        resident.faults.add("event", Stall(), times=1, skip=chance.randrange(6))
    # A resync that asks for less than that has ended: a moment like any other.
    await until(
        lambda: not resident.faults._planned or has_logged(worker, "room is fully stated", room)
    )
    await asyncio.sleep(0.1 * chance.random())


def has_logged(worker: Process, event: str, room: RoomBuilder) -> bool:
    return any(line.get("room_id") == room.room_id for line in worker.logged(event))


async def kill_with_all_helpers(worker: Process) -> int:
    """SIGKILL for the worker alone; returns how many processes it had, which have to end too."""
    helpers = []
    if worker.process.returncode is None:
        helpers = psutil.Process(worker.pid).children(recursive=True)
    await worker.kill()
    await until(lambda: all(has_ended(helper) for helper in helpers), seconds=30)
    return len(helpers)


def has_ended(process: psutil.Process) -> bool:
    try:
        # Nobody may be there to reap an orphan.
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def partial_rooms(ours: OurServer) -> list[str]:
    return ours.column("SELECT room_id FROM partial_state_rooms")


async def test_a_checking_process_that_is_killed_is_replaced(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    ours = make_ours(sqlite_url)
    room = simulated.create_room("10", members=2500)
    joined = await ours.join(room)
    resident = simulated.residents[0]
    resident.faults.add("state", StallMidway(0.5))
    worker = await ours.start("worker", "--once")

    def checking() -> list[psutil.Process]:
        """The children of the fork server, which is a child of the worker."""
        children = psutil.Process(worker.pid).children()
        return [checker for child in children for checker in child.children()]

    await until(lambda: resident.requests.count("state") and checking())
    for process in checking():
        process.kill()
    await asyncio.sleep(0.2)
    resident.faults.clear()

    assert await worker.wait() == 0, worker.errors
    check_truth(ours, room, joined.join_event_id, [])


async def test_a_worker_that_is_stopped_hands_its_rooms_back(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    """SIGTERM: it ends in order, and its successor has no lease to wait for."""
    ours = make_ours(sqlite_url)
    room = simulated.create_room("10", members=100)
    joined = await ours.join(room)
    resident = simulated.residents[0]
    resident.faults.stall("state_ids")
    worker = await ours.start("worker")
    await until(lambda: resident.requests.count("state_ids"))
    helpers = psutil.Process(worker.pid).children(recursive=True)
    leases = "SELECT lock_key FROM worker_locks WHERE lock_name = 'resync_room'"
    assert ours.query(leases) == [(room.room_id,)]

    worker.process.terminate()
    await worker.wait()

    await until(lambda: all(has_ended(helper) for helper in helpers), seconds=30)
    assert ours.query(leases) == []
    resident.faults.clear()
    await ours.run("worker", "--once")
    check_truth(ours, room, joined.join_event_id, [])
