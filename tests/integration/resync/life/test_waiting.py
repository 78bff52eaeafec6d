"""Events that lack something for now, and wait for it in the queue of their server and room."""

from __future__ import annotations

import pytest

from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation
from resync.receive import fetch, queue
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.our_server import until


def lanes_that_wait(life: Life, event: BuiltEvent) -> int:
    """In how many lanes the event waits, after it was tried."""
    return sum(event.event_id in lane.waiting for lane in life.worker._inbound._lanes())


async def make_incomplete(life: Life, room: RoomBuilder) -> tuple[BuiltEvent, BuiltEvent]:
    """An event that is withheld, and one that names it as an auth event."""
    life.hold_resync()
    join = await life.join(room)
    for resident in life.simulated.residents:
        resident.faults.refuse("event")
        resident.faults.refuse("get_missing_events")
    # The creator's membership before it came with the join.
    withheld = room.rename(room.creator, "New name", prev_events=[join])
    return withheld, room.message("By a new name")


async def test_what_another_lane_has_taken_in_is_waited_for_no_longer(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    withheld, incomplete = await make_incomplete(life, room)
    await life.push([incomplete], by=0)
    await life.push([incomplete], by=1)
    await until(lambda: lanes_that_wait(life, incomplete) == 2)

    await life.receive([withheld])

    await life.until_stored([incomplete])
    await until(lambda: not life.worker._inbound._lanes())
    assert life.staged() == []
    life.release_resync()
    await life.until_full(room)


async def test_what_a_purge_has_deleted_is_waited_for_no_longer(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    _, incomplete = await make_incomplete(life, room)
    await life.push([incomplete])
    await until(lambda: lanes_that_wait(life, incomplete) == 1)

    assert await life.worker.departures.purge(room.room_id)

    await until(lambda: not life.worker._inbound._lanes())
    life.release_resync()


async def test_a_busy_room_does_not_use_up_the_attempts_of_what_waits(
    life: Life, simulated: SimulatedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.05, 1000.0))
    monkeypatch.setattr(queue, "HURRY_SECONDS", 0.0)
    room = make_room(simulated)
    withheld, incomplete = await make_incomplete(life, room)
    await life.push([incomplete])
    requests = simulated.residents[0].requests

    for number in range(5):
        tried = requests.count("event")
        await life.receive([room.message(f"Busy {number}", prev_events=withheld.prev_event_ids)])
        await until(lambda tried=tried: requests.count("event") > tried)
    await until(lambda: lanes_that_wait(life, incomplete) == 1)
    assert life.staged() == [incomplete.event_id]

    await life.receive([withheld])
    await life.until_stored([incomplete])
    life.release_resync()
    await life.until_full(room)


async def test_states_that_do_not_come_hold_nothing_for_long(
    life: Life, simulated: SimulatedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a full room, where the state at unknown parents has to be asked for."""
    monkeypatch.setattr(fetch, "STATES_SECONDS", 0.3)
    room = make_room(simulated)
    await life.join(room)
    await life.until_full(room)
    for resident in simulated.residents:
        resident.faults.refuse("get_missing_events")
        resident.faults.stall("state_ids")
    room.set_topic("Missing")
    last = room.message("Last")
    await life.push([last])
    await until(lambda: lanes_that_wait(life, last) == 1)
    await until(lambda: not life.worker._inbound._slots._users)

    monkeypatch.setattr(fetch, "STATES_SECONDS", 60.0)
    for resident in simulated.residents:
        resident.faults.clear("state_ids")

    await life.until_stored([last])


async def test_a_server_that_answers_rubbish_is_not_the_only_one_asked(
    life: Life, simulated: SimulatedFederation
) -> None:
    """It sent an event first and withholds what that names; then another sends the same."""
    room = make_room(simulated)
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)
    liar, honest = simulated.residents
    withheld = room.rename(user, "New name", prev_events=[join])
    other = room.message("Something else")
    event = room.message("By a new name", sender=user)
    rubbish = room.event(other.event_id).json
    liar.faults.lie("event", lambda answer: answer.with_field("pdus", [rubbish.encode()]))
    for resident in simulated.residents:
        resident.faults.refuse("get_missing_events")

    await life.push([event], by=0)

    await life.until_stored([event])
    assert liar.requests.count("event") >= 1
    assert honest.requests.count("event") >= 1
    assert withheld.event_id in life.ours.column("SELECT event_id FROM events")
    life.release_resync()
    await life.until_full(room)


async def test_a_silent_server_leaves_the_others_their_time(
    life: Life, simulated: SimulatedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "AUTH_SECONDS", 4.0)
    room = make_room(simulated)
    user = remote_user(life, room)
    life.hold_resync()
    await life.join(room)
    simulated.residents[0].faults.stall("event")

    await life.receive([room.message("Of a member we do not know yet", sender=user)], by=0)

    assert simulated.residents[0].requests.count("event") >= 1
    simulated.residents[0].faults.clear("event")
    life.release_resync()
    await life.until_full(room)
