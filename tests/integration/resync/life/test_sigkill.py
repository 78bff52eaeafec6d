"""Many events in many partial rooms while they resync, and a SIGKILL in the middle of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp
import pytest

from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_receiving import remote_user
from tests.integration.resync.our_server import until
from tests.integration.resync.truth import check_truth

ROOMS = 20
EVENTS = 10_000


async def push_until_acknowledged(
    life: Life, events: Sequence[BuiltEvent], transaction_id: str
) -> None:
    """As a homeserver does: the same transaction again until it is answered."""
    while True:
        try:
            status, body = await life.simulated.residents[0].push(
                life.server_name, events, transaction_id=transaction_id
            )
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            await asyncio.sleep(0.1)
            continue
        if status == 200:
            assert body["pdus"] == {event.event_id: {} for event in events}
            return
        assert status in (429, 503), (status, body)
        await asyncio.sleep(0.1)


def live(room: RoomBuilder, users: Sequence[str], count: int) -> list[BuiltEvent]:
    """A room that goes on: mostly talk, now and then a topic or a name."""
    events = []
    for number in range(count):
        user = users[number % len(users)]
        if number % 50 == 25:
            events.append(room.set_topic(f"Topic {number}"))
        elif number % 20 == 10:
            events.append(room.rename(user, f"Name {number}"))
        else:
            events.append(room.message(f"Message {number}", sender=user))
    return events


@pytest.mark.parametrize(
    "database_url",
    ["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)],
    indirect=True,
)
async def test_nothing_is_lost_or_done_twice_by_a_sigkill(
    database_url: str,
    make_life: Callable[[str], Life],
    simulated: SimulatedFederation,
) -> None:
    life = make_life(database_url)
    rooms = [simulated.create_room("10", members=20) for _ in range(ROOMS)]
    joins = {}
    async with life.ours.worker() as worker:
        for room in rooms:
            joined = await worker.join(room.room_id, simulated.server_names[:1], life.alice)
            joins[room.room_id] = joined.join_event_id
    per_room = EVENTS // ROOMS
    events = {
        room.room_id: live(room, [room.creator, remote_user(life, room)], per_room)
        for room in rooms
    }
    for resident in simulated.residents:
        resident.faults.stall("state_ids", 1.0)
    transactions = [
        (events[room.room_id][start : start + 50], f"{room.room_id[1:9]}-{start}")
        for start in range(0, per_room, 50)
        for room in rooms
    ]
    killed_after = len(transactions) // 2
    process = await life.ours.start("worker")
    started = time.monotonic()
    position = iter(enumerate(transactions))
    kill = asyncio.Event()

    async def push() -> None:
        for number, (batch, transaction_id) in position:
            if number == killed_after:
                kill.set()
            await push_until_acknowledged(life, batch, transaction_id)

    pushing = asyncio.gather(*(push() for _ in range(3)))
    await kill.wait()
    await process.kill()
    process = await life.ours.start("worker")
    try:
        async with asyncio.timeout(240):
            await pushing
            acknowledged = time.monotonic() - started
            await until(lambda: not life.staged(), 240)
            stored = time.monotonic() - started
            await until(lambda: not life.ours.partial_rows(), 240)
    finally:
        process.process.terminate()
        await process.wait()
    print(
        f"\n{EVENTS} events in {ROOMS} rooms with one SIGKILL: acknowledged after "
        f"{acknowledged:.1f} s, stored after {stored:.1f} s ({EVENTS / stored:.0f} per second)"
    )

    for room in rooms:
        check_truth(
            life.ours,
            room,
            joins[room.room_id],
            events[room.room_id],
            rooms=ROOMS,
            all_announced=False,
        )
    graph = life.ours.query("SELECT event_id FROM events WHERE outlier = :o", o=False)
    assert len(graph) == EVENTS + ROOMS
    edges = life.ours.query("SELECT event_id, prev_event_id FROM event_edges")
    assert len(edges) == len(set(edges))
