"""Events that other servers send while a room is in partial state, over their own `/send`."""

from __future__ import annotations

from federation.simulator import RoomBuilder, SimulatedFederation, scenarios
from tests.integration.resync.life.life import Life
from tests.integration.resync.our_server import until
from tests.integration.resync.truth import check_truth


def make_room(simulated: SimulatedFederation, version: str = "10") -> RoomBuilder:
    return simulated.create_room(version, members=20)


def remote_user(life: Life, room: RoomBuilder, by: int = 0) -> str:
    """A joined user of a resident other than the creator."""
    server_name = life.simulated.server_names[by]
    members = [event.state_key for event in room.joined_members_of(server_name)]
    return next(user for user in members if user is not None and user != room.creator)


async def test_receives_events_during_the_partial_join(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    events = [room.message("Hello"), room.set_topic("A topic"), room.message("Goodbye")]

    await life.receive(events)

    assert life.is_partial(room)
    assert {event.event_id for event in events} <= life.partial_events()
    assert life.ours.rejected(room) == set()
    state = life.ours.current_state(room)
    assert state["m.room.topic", ""] == events[1].event_id
    tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
    assert tips == [events[2].event_id]

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, events)


async def test_receives_events_of_members_it_does_not_know_yet(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    user = remote_user(life, room)
    events = [room.message("I am new to you", sender=user), room.rename(user, "Known")]

    await life.receive(events)

    assert life.ours.rejected(room) == set()
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, events)


async def test_receives_events_with_missing_parents(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    events = [room.message(str(number)) for number in range(5)]

    await life.push(events[-1:])
    await life.until_stored(events)

    assert simulated.residents[0].requests.count("get_missing_events") == 1
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, events)


async def test_receives_events_whose_parents_nobody_gives(
    life: Life, simulated: SimulatedFederation
) -> None:
    """The state at what stays missing is found out by the resync."""
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    for resident in simulated.residents:
        resident.faults.refuse("get_missing_events")
    missing = room.set_topic("Not delivered")
    last = room.message("Delivered")

    await life.receive([last])
    assert last.event_id in life.partial_events()
    assert missing.event_id not in life.graph()
    backward = life.ours.column("SELECT event_id FROM event_backward_extremities")
    assert missing.event_id in backward

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [last])


async def test_receives_events_with_half_missing_parents(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    known = room.message("Known", prev_events=[join])
    unknown = room.message("Unknown", prev_events=[join])
    child = room.message("Child", prev_events=[known.event_id, unknown.event_id])

    await life.receive([known])
    await life.push([child])
    await life.until_stored([known, unknown, child])

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [known, unknown, child])


async def test_receives_events_with_half_missing_grandparents(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    known = room.message("Known", prev_events=[join])
    unknown = room.message("Unknown", prev_events=[join])
    parent = room.message("Parent", prev_events=[known.event_id, unknown.event_id])
    child = room.message("Child", prev_events=[parent.event_id])

    await life.receive([known])
    await life.push([child])
    await life.until_stored([known, unknown, parent, child])

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [known, unknown, parent, child])


async def test_the_resync_completes_when_events_arrive_before_their_prev_events(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    for resident in simulated.residents:
        resident.faults.refuse("get_missing_events")
    first, second, third = (room.set_topic(text) for text in ("One", "Two", "Three"))

    await life.receive([third])
    await life.receive([second])
    await life.receive([first])

    tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
    assert tips == [third.event_id] or tips == sorted([join, third.event_id])
    assert life.ours.current_state(room)["m.room.topic", ""] == third.event_id
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [first, second, third])


async def test_the_resync_syncs_using_other_homeservers(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    simulated.residents[0].faults.refuse("state_ids")
    simulated.residents[0].faults.refuse("state")

    join = await life.join(room)
    events = [room.message("Hello")]
    await life.receive(events, by=1)

    await life.until_full(room)
    assert simulated.residents[1].requests.count("state_ids") >= 1
    check_truth(life.ours, room, join, events, all_announced=False)


async def test_rejected_events_remain_rejected_after_the_resync(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)
    refused = room.set_topic("I may not", sender=user, rejected=True)
    after = room.message("On top of it", prev_events=[refused.event_id])

    await life.receive([refused, after])
    assert life.ours.rejected(room) == {refused.event_id}
    assert ("m.room.topic", "") not in life.ours.current_state(room)

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [refused, after])
    assert life.ours.announced_events()[refused.event_id] is False


async def test_state_accepted_incorrectly(life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    life.hold_resync()
    join = await life.join(room)
    topic = scenarios.accepted_wrongly(room, moderator)

    await life.receive([topic])
    assert life.ours.rejected(room) == set()
    assert life.ours.current_state(room)["m.room.topic", ""] == topic.event_id

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [topic])
    assert life.ours.rejected(room) == {topic.event_id}
    assert life.ours.announced_events()[topic.event_id] is True
    deltas = life.ours.query(
        "SELECT event_id, prev_event_id FROM current_state_delta_stream"
        " WHERE type = 'm.room.topic' ORDER BY stream_id"
    )
    assert deltas == [(topic.event_id, None), (None, topic.event_id)]


async def test_state_rejected_incorrectly(life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)
    wrong = scenarios.rejected_wrongly(room, moderator, user)

    await life.receive([wrong.kick, wrong.message])
    assert life.ours.rejected(room) == {wrong.message.event_id}

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [wrong.kick, wrong.message])
    assert life.ours.rejected(room) == {wrong.kick.event_id}
    assert life.ours.announced_events()[wrong.message.event_id] is True


async def test_continues_after_a_restart(life: Life, simulated: SimulatedFederation) -> None:
    """Another worker on the same database takes over."""
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    first, second = room.message("Before"), room.message("After")
    await life.receive([first])
    await life.stop()
    life.release_resync()

    async with life.running():
        await life.receive([second])
        await life.until_full(room)

    check_truth(life.ours, room, join, [first, second], all_announced=False)


async def test_what_waits_is_taken_in_after_a_restart(
    life: Life, simulated: SimulatedFederation
) -> None:
    """It was acknowledged, and lacks an auth event that nobody gave so far."""
    room = make_room(simulated)
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)
    for resident in simulated.residents:
        resident.faults.refuse("event")
        resident.faults.refuse("get_missing_events")
    missing = room.rename(user, "New name", prev_events=[join])
    waiting = room.message("By a new name", sender=user)
    await life.push([waiting])
    queue = life.worker._inbound
    await until(lambda: any(waiting.event_id in lane.waiting for lane in queue._lanes()))
    await life.stop()
    assert life.staged() == [waiting.event_id]
    assert waiting.event_id not in life.graph()
    for resident in simulated.residents:
        resident.faults.clear("event")

    async with life.running():
        await life.until_stored([waiting])
        assert life.ours.rejected(room) == set()
        life.release_resync()
        await life.until_full(room)

    key = ("m.room.member", user)
    assert life.ours.current_state(room)[key] == missing.event_id


async def test_an_event_that_is_fine_by_its_place_but_not_now_is_soft_failed(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Once the room is full: a banned user sends from before the ban."""
    room = make_room(simulated)
    user = remote_user(life, room)
    join = await life.join(room)
    await life.until_full(room)
    before = room.message("Before the ban")
    ban = room.ban(user, prev_events=[before.event_id])
    await life.receive([before, ban])
    late = room.message("Late", sender=user, prev_events=[before.event_id])
    await life.receive([late])

    assert life.ours.rejected(room) == set()
    tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
    assert tips == [ban.event_id]
    (metadata,) = life.ours.column(
        "SELECT internal_metadata FROM event_json WHERE event_id = :id", id=late.event_id
    )
    assert "soft_failed" in metadata
    key = ("m.room.member", user)
    assert life.ours.current_state(room)[key] == ban.event_id
    assert life.partial_events() == set()
    assert join in life.graph()


async def test_events_of_a_full_room_whose_parents_are_missing_get_the_state_asked_for(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    await life.join(room)
    await life.until_full(room)
    for resident in simulated.residents:
        resident.faults.refuse("get_missing_events")
    missing = room.set_topic("Missing")
    last = room.message("Last")

    await life.receive([last])

    await until(lambda: not life.staged())
    states = life.ours.states_after([last.event_id])
    assert states[last.event_id]["m.room.topic", ""] == missing.event_id
    assert life.ours.current_state(room)["m.room.topic", ""] == missing.event_id
