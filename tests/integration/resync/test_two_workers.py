"""Two workers on one PostgreSQL database share the rooms, and one takes over from the other."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation
from tests.integration.resync.our_server import ALICE, OurServer, Process, deliver, until
from tests.integration.resync.truth import check_truth

ROOMS = 50
CONCURRENT_ROOMS = 3
"""Of each worker."""


async def join_rooms(
    simulated: SimulatedFederation, ours: OurServer, count: int
) -> list[tuple[RoomBuilder, str, list[BuiltEvent]]]:
    """Small rooms that were joined partially and have received two events since."""
    rooms = []
    async with ours.worker() as worker:
        for _ in range(count):
            room = simulated.create_room("10", members=6)
            joined = await worker.join(room.room_id, simulated.server_names[:1], ALICE)
            events = [room.set_topic("Topic"), room.message("Message")]
            rooms.append((room, joined.join_event_id, events))
            await deliver(worker, room, events)
    return rooms


def make_two(
    tmp_path: Path, url: str, simulated: SimulatedFederation, **resync: float
) -> list[OurServer]:
    settings = {"lease_ttl_seconds": 2.0, "concurrent_rooms": CONCURRENT_ROOMS, **resync}
    return [
        OurServer(tmp_path, url, simulated, instance_name=name, resync=settings)
        for name in ("worker1", "worker2")
    ]


def complete_rooms(ours: OurServer) -> int:
    count: int = ours.query("SELECT COUNT(*) FROM un_partial_stated_room_stream")[0][0]
    return count


async def test_fifty_rooms_and_one_worker_killed_midway(
    simulated: SimulatedFederation, postgresql_url: str, tmp_path: Path
) -> None:
    first, second = make_two(tmp_path, postgresql_url, simulated)
    rooms = await join_rooms(simulated, first, ROOMS)
    faults, requests = simulated.residents[0].faults, simulated.residents[0].requests
    faults.stall("state_ids")
    doomed, survivor = await start_both(first, second)
    try:
        # What both have begun is finished; then they have as many rooms in hand again.
        await until(lambda: requests.count("state_ids") == 2 * CONCURRENT_ROOMS)
        faults.clear("state_ids")
        faults.stall("state_ids")
        await until(lambda: requests.count("state_ids") == 4 * CONCURRENT_ROOMS)
        await doomed.kill()
        held = lease_holders(first)
        faults.clear("state_ids")
        await until(lambda: complete_rooms(first) == ROOMS, seconds=60)
        await until(lambda: lease_holders(first) == {}, seconds=30)
    finally:
        survivor.process.terminate()
        await doomed.kill()
        await survivor.wait()

    for room, join_event_id, events in rooms:
        check_truth(first, room, join_event_id, events, rooms=ROOMS)
    assert len(first.announced_events()) == 3 * ROOMS
    # Both have worked, on different rooms, and each room was walked once, but for those taken over.
    by_instance = Counter(first.column("SELECT instance_name FROM un_partial_stated_room_stream"))
    assert by_instance.keys() == {"worker1", "worker2"}
    started = Counter(
        line["room_id"] for worker in (doomed, survivor) for line in worker.logged("resync started")
    )
    assert started.keys() == {room.room_id for room, _, _ in rooms}
    taken_over = {room_id for room_id, name in held.items() if name == "worker1"}
    assert taken_over
    assert {room_id for room_id, count in started.items() if count > 1} <= taken_over
    assert max(started.values()) <= 2
    finished = Counter(
        line["room_id"]
        for worker in (doomed, survivor)
        for line in worker.logged("room is fully stated")
    )
    assert max(finished.values()) == 1
    asked = Counter(request.target for request in simulated.residents[0].requests.of("state_ids"))
    repeated = [target for target, count in asked.items() if count > 1]
    assert all(any(room_id in target for room_id in taken_over) for target in repeated)
    assert simulated.residents[1].requests.count("state_ids") == 0


async def start_both(first: OurServer, second: OurServer) -> tuple[Process, Process]:
    """Both workers, so far that they look for rooms at about the same time."""
    return await first.start("worker"), await second.start("worker")


def lease_holders(ours: OurServer) -> dict[str, str]:
    return dict(
        ours.query(
            "SELECT lock_key, instance_name FROM worker_locks WHERE lock_name = 'resync_room'"
        )
    )


async def test_rooms_are_shared_and_each_is_resynced_once(
    simulated: SimulatedFederation, postgresql_url: str, tmp_path: Path
) -> None:
    """Undisturbed: not one request is made twice."""
    servers = make_two(tmp_path, postgresql_url, simulated)
    rooms = await join_rooms(simulated, servers[0], 20)
    simulated.residents[0].faults.stall("state_ids", seconds=0.2)

    workers = [await ours.start("worker", "--once") for ours in servers]
    for worker in workers:
        assert await worker.wait(60) == 0, worker.errors

    for room, join_event_id, events in rooms:
        check_truth(servers[0], room, join_event_id, events, rooms=len(rooms))
    done = [len(worker.logged("room is fully stated")) for worker in workers]
    assert sum(done) == len(rooms)
    assert min(done) > 0
    asked = Counter(
        (request.endpoint, request.target)
        for request in simulated.residents[0].requests
        if request.endpoint in ("state_ids", "state")
    )
    assert set(asked.values()) == {1}


async def test_a_worker_that_was_asleep_does_not_write_over_its_successor(
    simulated: SimulatedFederation, postgresql_url: str, tmp_path: Path
) -> None:
    """Stopped, as a virtual machine that is paused: it wakes up without its lease."""
    sleeper, successor = make_two(tmp_path, postgresql_url, simulated, lease_ttl_seconds=1.0)
    ((room, join_event_id, events),) = await join_rooms(simulated, sleeper, 1)
    resident = simulated.residents[0]
    resident.faults.stall("state_ids", times=1)
    asleep = await sleeper.start("worker")
    try:
        await until(lambda: resident.requests.count("state_ids"))
        asleep.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.1)
        awake = await successor.start("worker", "--once")
        assert await awake.wait() == 0, awake.errors
        assert awake.logged("room is fully stated")
        before = sleeper.contents()
        resident.faults.clear()
        asleep.process.send_signal(signal.SIGCONT)
        await until(lambda: any("lease" in line["event"] for line in asleep.log))
    finally:
        asleep.process.send_signal(signal.SIGCONT)
        asleep.process.terminate()
        await asleep.wait()

    check_truth(sleeper, room, join_event_id, events)
    after = sleeper.contents()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"destinations", "stream_positions", "worker_locks"}
