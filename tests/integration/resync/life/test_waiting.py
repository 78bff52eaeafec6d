"""What needs full state waits for it, and wakes when it is there or the room is left."""

from __future__ import annotations

import asyncio

from federation.simulator import SimulatedFederation
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_receiving import make_room


async def test_waits_for_the_room_and_the_event(life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    assert not await life.worker.wait_until_complete(room.room_id, 0.05)
    assert not await life.worker.wait_until_event_complete(join, 0.05)
    waiting = asyncio.gather(
        life.worker.wait_until_complete(room.room_id, 20),
        life.worker.wait_until_event_complete(join, 20),
    )

    life.release_resync()

    assert await waiting == [True, True]
    assert life.ours.partial_rows() == []


async def test_leaving_ends_the_wait(life_on_sqlite: Life, simulated: SimulatedFederation) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    waiting = asyncio.gather(
        life.worker.wait_until_complete(room.room_id, 20),
        life.worker.wait_until_event_complete(join, 20),
    )
    await asyncio.sleep(0)

    await life.worker.departures.leave(room.room_id, life.alice)

    # Sooner than by looking at the table from time to time.
    async with asyncio.timeout(3):
        assert await waiting == [True, True]
    life.release_resync()


async def test_what_is_not_partial_is_not_waited_for(life_on_sqlite: Life) -> None:
    assert await life_on_sqlite.worker.wait_until_event_complete("$unknown", 5)
    assert await life_on_sqlite.worker.wait_until_complete("!unknown:server", 5)
