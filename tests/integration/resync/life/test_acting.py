"""What our users do while the room is in partial state."""

from __future__ import annotations

import pytest

from federation.simulator import SimulatedFederation
from resync.acting import EventNotAllowed
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.our_server import until
from tests.integration.resync.truth import check_truth


def queued(life: Life) -> list[str]:
    """The servers that do not have everything yet, apart from the one that never answers."""
    return [
        server
        for server in life.ours.column("SELECT destination FROM resync_outgoing_events")
        if not server.endswith(".invalid")
    ]


@pytest.mark.parametrize("room_version", ["1", "10", "12"])
async def test_sends_events_during_the_partial_join(
    room_version: str, life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated, room_version)
    room.set_power_levels({"users": {life.alice: 50}})
    life.hold_resync()
    join = await life.join(room)

    message = await life.worker.creator.send(
        room.room_id, life.alice, "m.room.message", {"body": "Hello"}
    )
    topic = await life.worker.creator.send(
        room.room_id, life.alice, "m.room.topic", {"topic": "Ours"}, state_key=""
    )
    await until(lambda: not queued(life))

    assert {message.event_id, topic.event_id} <= room.events.keys()
    assert {message.event_id, topic.event_id} <= life.partial_events()
    for resident in simulated.residents:
        assert resident.requests.count("send") >= 1
    life.release_resync()
    await life.until_full(room)
    sent = [room.events[message.event_id], room.events[topic.event_id]]
    check_truth(life.ours, room, join, sent)


async def test_changes_the_display_name_during_the_partial_join(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)

    renamed = await life.worker.creator.set_profile(
        room.room_id, life.alice, {"displayname": "Alice"}
    )
    await until(lambda: not queued(life))

    state = life.ours.current_state(room)
    assert state["m.room.member", life.alice] == renamed.event_id
    assert room.pdu(renamed.event_id)["content"] == {"membership": "join", "displayname": "Alice"}
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [room.events[renamed.event_id]])


async def test_kicks_a_member_that_is_not_known_yet(
    life: Life, simulated: SimulatedFederation
) -> None:
    """The membership of the target is missing in partial state, so no auth event names it."""
    room = make_room(simulated)
    room.set_power_levels({"users": {life.alice: 50}})
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)

    kick = await life.worker.creator.send(
        room.room_id, life.alice, "m.room.member", {"membership": "leave"}, state_key=user
    )
    await until(lambda: not queued(life))

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [room.events[kick.event_id]])
    assert life.ours.current_state(room)["m.room.member", user] == kick.event_id


async def test_what_the_room_does_not_allow_is_refused_and_not_sent(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)

    with pytest.raises(EventNotAllowed):
        await life.worker.creator.send(
            room.room_id, life.alice, "m.room.topic", {"topic": "Mine"}, state_key=""
        )
    with pytest.raises(EventNotAllowed):
        await life.worker.creator.send(room.room_id, life.bob, "m.room.message", {"body": "Hi"})

    assert life.graph() == {join}
    assert life.ours.query("SELECT * FROM resync_outgoing_events") == []
    life.release_resync()


async def test_what_is_not_confirmed_is_sent_after_a_restart(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    for resident in simulated.residents:
        resident.faults.refuse("send", 500)
    sent = [
        await life.worker.creator.send(
            room.room_id, life.alice, "m.room.message", {"body": str(number)}
        )
        for number in range(3)
    ]
    await until(lambda: all(r.requests.count("send") for r in simulated.residents))
    await life.stop()
    assert not {event.event_id for event in sent} & room.events.keys()
    for resident in simulated.residents:
        resident.faults.clear("send")

    async with life.running():
        # A server that speaks to us is tried again at once.
        await life.push([room.message("I am back")])
        await life.push([room.message("So am I")], by=1)
        await until(lambda: not queued(life))

    assert [e for e in room.events if e in {s.event_id for s in sent}] == [
        event.event_id for event in sent
    ]
    life.release_resync()
