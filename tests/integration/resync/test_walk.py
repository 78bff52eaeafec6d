"""What was received in partial state is put right by the walk, event by event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from federation.events import StateKey
from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation, scenarios
from resync.progress import Phase
from resync.walk.walk import GAPS_AHEAD
from resync.worker import Worker
from storage.errors import RoomNotPartial
from tests.integration.resync.our_server import ALICE, OurServer, deliver, ids, until
from tests.integration.resync.truth import Quarrel, append, check_truth, resolved


def joined_users(room: RoomBuilder, count: int) -> list[str]:
    """Members of the room, other than the creator."""
    users = [
        event.state_key
        for event in (room.events[event_id] for event_id in room.current_state().values())
        if event.membership == "join" and event.state_key not in (None, room.creator, ALICE)
    ]
    return [user for user in users if user is not None][:count]


async def receive_all(
    ours: OurServer, room: RoomBuilder, events: Sequence[BuiltEvent], batch: int = 50
) -> None:
    received = await ours.receive(room, events, batch)
    assert received.refused == []
    assert sorted(received.stored) == sorted(ids(events))
    assert ours.partial_rows() != []


async def test_a_chain_of_messages_and_state_changes(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=40)
    joined = await ours.join(room)
    user, other = joined_users(room, 2)
    newcomer = f"@newcomer:{simulated.server_names[1]}"
    events = [
        room.message("One"),
        room.set_topic("Topic"),
        room.rename(user, "Another name"),
        room.message("Two", sender=other),
        room.kick(other),
        room.join(newcomer),
        room.set_power_levels({"users": {newcomer: 50}}),
        room.set_topic("Another topic", sender=newcomer),
        room.ban(user, sender=newcomer),
        room.set_join_rules("invite", sender=newcomer),
        room.message("Three", sender=newcomer),
    ]
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    assert not any(ours.announced_events().values())
    assert ours.announced_events().keys() == {joined.join_event_id, *ids(events)}
    # The one state we did not have: that before our join.
    requests = simulated.residents[0].requests
    assert (requests.count("state_ids"), requests.count("state")) == (1, 1)


@pytest.mark.parametrize(
    ("room_version", "seed"),
    [("10", 1), ("10", 2), ("11", 3), ("12", 4), ("12", 5), ("6", 6), ("2", 7), ("1", 8)],
)
async def test_forks_and_merges_with_conflicts(
    room_version: str, seed: int, simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Sixty events of people who fight over a room, received as they were sent."""
    room = simulated.create_room(room_version, members=15)
    users = joined_users(room, 4)
    room.set_power_levels({"users": {users[0]: 50, users[1]: 50}})
    joined = await ours.join(room)
    quarrel = Quarrel(room, users, seed)
    events = [*quarrel.go_on(60), quarrel.merge()]
    assert any(event.rejected for event in events)
    assert any(len(event.prev_event_ids) > 1 for event in events)
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)


@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_forks_and_merges_with_gaps(
    seed: int, simulated: SimulatedFederation, ours: OurServer
) -> None:
    """The same, but every fourth event never reached us."""
    room = simulated.create_room("10", members=15)
    users = joined_users(room, 4)
    room.set_power_levels({"users": {users[0]: 50, users[1]: 50}})
    joined = await ours.join(room)
    quarrel = Quarrel(room, users, seed)
    quarrel.go_on(48)
    quarrel.merge()
    events = [event for number, event in enumerate(quarrel.events) if number % 4 != 1]
    await receive_all(ours, room, events, batch=1)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)


async def test_an_event_beside_our_join(simulated: SimulatedFederation, ours: OurServer) -> None:
    """It was sent before its sender knew of our join, so it follows what we do not have."""
    room = simulated.create_room("11", members=20)
    tips = tuple(room.forward_extremities)
    user, other = joined_users(room, 2)
    joined = await ours.join(room)
    beside = [
        room.message("Beside", prev_events=tips),
        room.rename(user, "Beside", prev_events=tips),
        room.kick(other, prev_events=tips),
    ]
    merge = append(
        room,
        "m.room.message",
        {"body": "Merge"},
        prev_events=[joined.join_event_id, *ids(beside)],
        sender=room.creator,
    )
    events = [*beside, merge]
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    assert simulated.residents[0].requests.count("state_ids") == 1


async def test_state_accepted_wrongly_is_rejected(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    joined = await ours.join(room)
    wrong = scenarios.accepted_wrongly(room, moderator)
    after = room.message("After", prev_events=[wrong.event_id])
    received = await ours.receive(room, [wrong, after])
    assert received.rejected == {}
    assert ours.rejected(room) == set()

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [wrong, after])
    assert ours.rejected(room) == {wrong.event_id}
    assert ours.announced_events() == {
        joined.join_event_id: False,
        wrong.event_id: True,
        after.event_id: False,
    }
    assert ("m.room.topic", "") not in ours.current_state(room)


async def test_what_is_behind_a_wrongly_accepted_event_is_no_extremity(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    joined = await ours.join(room)
    wrong = scenarios.accepted_wrongly(room, moderator)
    after = room.message("After", prev_events=[wrong.event_id])
    await receive_all(ours, room, [wrong, after])

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [wrong, after])


async def test_state_rejected_wrongly_is_accepted(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    victim = f"@victim:{simulated.server_names[1]}"
    room.join(victim)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    joined = await ours.join(room)
    keys = [("m.room.create", ""), ("m.room.power_levels", ""), ("m.room.member", victim)]
    # A kick would not do: the victim's join, which their events name, would win over it.
    ban = room.ban(
        victim,
        sender=moderator.user_id,
        auth_events=[
            *(room.current_state()[StateKey(*key)] for key in keys),
            moderator.join.event_id,
        ],
        rejected=True,
    )
    message = room.message("Still here", sender=victim, prev_events=[ban.event_id])
    rename = room.rename(victim, "Still here")
    events = [ban, message, rename]
    received = await ours.receive(room, events)
    assert received.rejected.keys() == {message.event_id, rename.event_id}

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    announced = ours.announced_events()
    assert [announced[event.event_id] for event in events] == [True, True, True]
    assert ours.current_state(room)["m.room.member", victim] == rename.event_id
    membership = ours.query(
        "SELECT membership FROM room_memberships WHERE event_id = :id", id=ban.event_id
    )
    assert membership == []


async def test_rejected_events_remain_rejected(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    (user,) = joined_users(room, 1)
    joined = await ours.join(room)
    forbidden = room.set_topic("Forbidden", sender=user, rejected=True)
    after = room.message("After", prev_events=[forbidden.event_id])
    received = await ours.receive(room, [forbidden, after])
    assert received.rejected.keys() == {forbidden.event_id}

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [forbidden, after])
    assert ours.announced_events()[forbidden.event_id] is False


async def test_what_rests_on_a_wrongly_accepted_event_falls_with_it(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """A banned moderator promotes a friend, who names that promotion as auth event."""
    room = simulated.create_room("10", members=20)
    friend = f"@friend:{simulated.server_names[1]}"
    friends_join = room.join(friend)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    levels = dict(room.content_of(("m.room.power_levels", "")) or {})
    levels["events"] = {**levels["events"], "m.room.power_levels": 50}
    room.send_state("m.room.power_levels", levels)
    joined = await ours.join(room)
    create = room.state_event(("m.room.create", ""))
    old_levels = room.state_event(("m.room.power_levels", ""))
    assert create is not None
    assert old_levels is not None
    promotion = room.send_state(
        "m.room.power_levels",
        {**levels, "users": {**levels["users"], friend: 50}},
        sender=moderator.user_id,
        auth_events=[create.event_id, old_levels.event_id, moderator.join.event_id],
        rejected=True,
    )
    topic = room.set_topic(
        "Ours",
        sender=friend,
        prev_events=[promotion.event_id],
        auth_events=[create.event_id, promotion.event_id, friends_join.event_id],
        rejected=True,
    )
    message = room.message("Hello", prev_events=[topic.event_id])
    events = [promotion, topic, message]
    received = await ours.receive(room, events)
    assert received.rejected == {}

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    assert ours.rejected(room) == {promotion.event_id, topic.event_id}
    announced = ours.announced_events()
    assert [announced[event.event_id] for event in events] == [True, True, False]


async def test_hundreds_of_events_in_a_chain(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """More than one batch of the walk, and more than one chain of state groups."""
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    events = [
        room.set_topic(f"Topic {number}") if number % 4 == 0 else room.message(f"{number}")
        for number in range(700)
    ]
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    lengths = state_group_chain_lengths(ours)
    assert max(lengths) <= 100


def state_group_chain_lengths(ours: OurServer) -> list[int]:
    edges = dict(ours.query("SELECT state_group, prev_state_group FROM state_group_edges"))
    lengths = []
    for (group,) in ours.query("SELECT id FROM state_groups"):
        length = 1
        while group in edges:
            group = edges[group]
            length += 1
        lengths.append(length)
    return lengths


async def test_the_state_at_many_gaps_costs_what_changed(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Ten gaps in a room of 300 members: one state in full, and the changes of each gap."""
    room = simulated.create_room("10", members=300)
    users = joined_users(room, 40)
    truth = len(room.current_state())
    joined = await ours.join(room)
    before = ours.query("SELECT COUNT(*) FROM state_groups_state")[0][0]
    received = []
    for gap in range(10):
        for number in range(3):
            room.rename(users[3 * gap + number], f"In gap {gap}")
        room.message("The gap")
        received += [room.message("After the gap"), room.set_topic(f"After gap {gap}")]
    await receive_all(ours, room, received)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, received)
    rows = ours.query("SELECT COUNT(*) FROM state_groups_state")[0][0] - before
    # Each group builds on the first, so the changes of the gaps before it may be repeated.
    assert rows < truth + 10 * (10 * 4 + 10)
    requests = simulated.residents[0].requests
    counts = Counter(asked.endpoint for asked in requests)
    assert counts["state_ids"] == 11
    assert counts["state"] == 1
    # Three renames at each gap, the message before it, and the event before our join. Gaps that
    # are fetched at the same time do not know what the others are fetching.
    fetched = Counter(asked.target for asked in requests if asked.endpoint == "event")
    assert len(fetched) <= 10 * 4 + 1
    assert max(fetched.values()) <= GAPS_AHEAD
    assert simulated.residents[1].requests.count("state_ids") == 0


async def test_a_gap_at_a_state_event(simulated: SimulatedFederation, ours: OurServer) -> None:
    """`/state_ids` tells the state before it: it has to be added itself, unless it is rejected."""
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    (user,) = joined_users(room, 1)
    topic = room.set_topic("Never received")
    first = room.message("After the topic")
    rejected = room.set_topic("Never accepted", sender=user, rejected=True)
    second = room.message("After the rejected", prev_events=[rejected.event_id, first.event_id])
    await receive_all(ours, room, [first, second])

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [first, second])
    assert ours.current_state(room)["m.room.topic", ""] == topic.event_id
    assert rejected.event_id in ours.rejected(room)


async def test_half_missing_parents(simulated: SimulatedFederation, ours: OurServer) -> None:
    """An event with one parent that we have and two that we have not, one of them a fork."""
    room = simulated.create_room("10", members=20)
    joined = await ours.join(room)
    user, other = joined_users(room, 2)
    known = room.set_topic("Known")
    missing = room.rename(user, "Missing", prev_events=[joined.join_event_id])
    grandparent = room.kick(other, prev_events=[joined.join_event_id])
    conflicting = room.set_topic("Conflicting", prev_events=[grandparent.event_id])
    merge = append(
        room,
        "m.room.message",
        {"body": "Merge"},
        prev_events=[known.event_id, missing.event_id, conflicting.event_id],
        sender=room.creator,
    )
    events = [known, merge, room.message("Last")]
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)


async def test_events_come_before_their_prev_events(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    (user,) = joined_users(room, 1)
    events = [
        room.set_topic("First"),
        room.rename(user, "Second"),
        room.message("Third"),
        room.set_topic("Fourth"),
    ]
    for event in reversed(events):
        received = await ours.receive(room, [event])
        assert received.stored == [event.event_id]

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    # Nothing but the event before our join was missing in the end.
    assert simulated.residents[0].requests.count("state_ids") == 1


async def test_a_batch_in_the_wrong_order_with_lying_depths(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Depth is a stranger's word: children may claim to be above their parents."""
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    events = [
        room.set_topic(f"Topic {number}", fields={"depth": 100 - number}) for number in range(10)
    ]
    received = await ours.receive(room, events[::-1])
    assert sorted(received.stored) == sorted(ids(events))

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)


async def test_events_that_come_again_change_nothing(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    events = [room.set_topic("Topic"), room.message("Message")]
    await receive_all(ours, room, events)
    before = ours.contents()

    again = await ours.receive(room, [*events, *events])

    assert again.stored == []
    assert ours.contents() == before
    await ours.resync()
    check_truth(ours, room, joined.join_event_id, events)


async def test_events_that_come_while_the_state_is_fetched(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """The walk began without them: the room is walked again before it is completed."""
    room = simulated.create_room("10", members=30)
    joined = await ours.join(room)
    first = room.set_topic("Before the walk")
    await receive_all(ours, room, [first])
    resident = simulated.residents[0]
    resident.faults.stall("state_ids")

    async with ours.worker() as worker:
        work = asyncio.create_task(worker.run(once=True))
        await until(lambda: resident.requests.count("state_ids"))
        missing = room.message("Never received")
        during = [room.set_topic("During the walk"), room.message("During the walk")]
        await deliver(worker, room, during)
        resident.faults.clear()
        await work

    check_truth(ours, room, joined.join_event_id, [first, *during])
    assert resident.requests.count("state_ids") == 2
    assert missing.event_id in ours.column("SELECT event_id FROM events")


async def test_events_that_come_at_every_moment_of_a_resync(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """One by one, as fast as they are taken, for a while."""
    room = simulated.create_room("10", members=100)
    joined = await ours.join(room)
    users = joined_users(room, 30)
    taken = []

    async def talk(worker: Worker) -> None:
        for number in range(60):
            user = users[number % len(users)]
            event = room.rename(user, f"{number}") if number % 3 else room.set_topic(f"{number}")
            try:
                received = await deliver(worker, room, [event])
            except RoomNotPartial:
                return
            assert received.stored == [event.event_id]
            taken.append(event)

    async with ours.worker() as worker:
        talking = asyncio.create_task(talk(worker))
        await until(lambda: len(taken) > 5)
        await worker.run(once=True)
        await talking
        await worker.run(once=True)

    check_truth(ours, room, joined.join_event_id, taken, all_announced=False)


async def test_progress_is_reported_in_order(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=100)
    phases: list[str] = []

    async with ours_on_sqlite.worker() as worker:
        await worker.join(room.room_id, simulated.server_names[:1], ALICE)

        async def watch() -> None:
            async with worker.progress.subscribe() as changes:
                async for progress in changes:
                    assert 0 <= progress.done <= progress.total or progress.total == 0
                    phases.append(progress.phase)
                    if progress.finished:
                        return

        watching = asyncio.create_task(watch())
        await worker.run(once=True)
        async with asyncio.timeout(5):
            await watching

    assert phases[-1] == Phase.DONE
    order = [Phase.FETCH, Phase.WALK, Phase.COMPLETE, Phase.DONE]
    positions = [order.index(Phase(phase)) for phase in phases]
    assert positions == sorted(positions)
    assert {Phase.FETCH, Phase.DONE} <= set(phases)


async def test_two_forks_that_both_ban_the_other(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Two moderators ban each other on forks; state resolution decides, and who talks on."""
    room = simulated.create_room("10", members=20)
    first, second = joined_users(room, 2)
    room.set_power_levels({"users": {first: 60, second: 50}})
    joined = await ours.join(room)
    tip = [joined.join_event_id]
    bans = [
        append(
            room,
            "m.room.member",
            {"membership": "ban"},
            prev_events=tip,
            sender=one,
            state_key=other,
        )
        for one, other in ((first, second), (second, first))
    ]
    merge = append(
        room, "m.room.message", {"body": "Merged"}, prev_events=ids(bans), sender=room.creator
    )
    talk = [
        append(
            room,
            "m.room.topic",
            {"topic": user},
            prev_events=ids([merge]),
            sender=user,
            state_key="",
        )
        for user in (first, second)
    ]
    # The one with less power cannot ban the other, in neither fork.
    assert [event.rejected for event in bans] == [False, True]
    assert [event.rejected for event in talk] == [False, True]
    events = [*bans, merge, *talk]
    await receive_all(ours, room, events)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, events)
    assert ours.current_state(room) == resolved(room, [talk[0].event_id])
