"""Events that claim a place in the graph which they do not have."""

from __future__ import annotations

from federation.canonical_json import parse_json
from federation.room_versions import get_room_version
from federation.signing import sign_event
from federation.simulator import SimulatedFederation
from resync.patience import PARENT_ATTEMPTS, PARENT_ATTEMPTS_DURING_OUTAGE
from tests.integration.resync.life.life import Life, target
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.our_server import until
from tests.integration.resync.truth import check_truth


async def test_a_parent_in_another_room_lends_no_state(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Banned here, and powerful in a room of their own, which we are in as well."""
    room, own = make_room(simulated), make_room(simulated)
    user = remote_user(life, room)
    room.set_power_levels({"users": {user: 50}})
    as_moderator = room.current_state()
    own.join(user)
    own.set_power_levels({"users": {user: 100}})
    ban = room.ban(user)
    join = await life.join(room)
    await life.join(own)
    await life.until_full(own)
    await life.until_full(room)
    parent = own.message("In a room of my own")
    await life.receive([parent])
    before = life.ours.current_state(room)

    attack = room.set_topic(
        "Mine",
        sender=user,
        prev_events=[parent.event_id],
        auth_events=[as_moderator[key] for key in room.auth_types("m.room.topic", {}, user, "")],
        state_before=as_moderator,
        rejected=True,
    )
    await life.push([attack])
    await until(lambda: not life.staged())

    assert life.ours.current_state(room) == before
    assert before["m.room.member", user] == ban.event_id
    tips = "SELECT event_id FROM event_forward_extremities WHERE room_id = :r"
    assert life.ours.column(tips, r=room.room_id) == [join]
    assert attack.event_id not in life.graph() - life.ours.rejected(room)


async def test_a_second_create_event_makes_no_second_room(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Its auth rules allow it: nothing before it, sent by the server that the room id names."""
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    create = room.append(
        "m.room.create",
        {"creator": room.creator, "room_version": "10"},
        state_key="",
        prev_events=[],
        auth_events=[],
        state_before={},
        rejected=True,
    )

    results = await life.push([create])

    assert "error" in results[create.event_id]
    await until(lambda: not life.staged())
    assert life.ours.column("SELECT event_id FROM event_forward_extremities") == [join]
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [])


async def test_an_event_of_another_room_follows_nothing_here(
    life: Life, simulated: SimulatedFederation
) -> None:
    """It names an event of this room as its parent before that one has come."""
    room, own = make_room(simulated), make_room(simulated)
    life.hold_resync()
    await life.join(room)
    await life.join(own)
    late = room.set_topic("Late")
    attack = own.message(
        "Mine",
        prev_events=[*own.forward_extremities, late.event_id],
        state_before=own.current_state(),
    )
    await life.receive([attack])
    await life.receive([late])

    tips = "SELECT event_id FROM event_forward_extremities WHERE room_id = :r"
    assert life.ours.column(tips, r=room.room_id) == [late.event_id]
    assert life.ours.current_state(room)["m.room.topic", ""] == late.event_id
    life.release_resync()


async def test_parents_that_nobody_has_do_not_keep_the_room_partial(
    life: Life, simulated: SimulatedFederation
) -> None:
    """One event has a parent that is known beside it and is judged by that, the other has none."""
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    state = room.current_state()
    half = room.message("Half", prev_events=["$" + "x" * 43, join], state_before=state)
    lost = room.set_topic("Lost", prev_events=["$" + "y" * 43], state_before=state, rejected=True)
    await life.receive([half, lost])
    assert life.ours.rejected(room) == set()
    life.release_resync()

    await life.until_full(room)

    assert life.ours.rejected(room) == {lost.event_id}
    assert life.ours.current_state(room) == room.state_after(half.event_id)
    tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
    assert tips == [half.event_id]
    given_up = {event_id for event_id, _ in life.ours.job(room)["given_up"]}
    assert given_up == {"$" + "x" * 43, "$" + "y" * 43}
    # What strangers name costs no patience with those whose keys are away.
    job = life.ours.job(room)
    assert job["unknown_parent_attempts"] == PARENT_ATTEMPTS
    assert job["uncheckable_attempts"] == 0


async def test_the_parent_of_our_join_is_never_given_up(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """However often servers say that they do not know it: without it we are not in the room."""
    life = life_on_sqlite
    room = make_room(simulated)
    for resident in simulated.residents:
        resident.faults.refuse("state_ids", 404, "M_NOT_FOUND")
    join = await life.join(room)
    attempts = "SELECT attempts FROM resync_jobs"
    await until(lambda: life.ours.column(attempts)[0] > PARENT_ATTEMPTS + 2)
    for resident in simulated.residents:
        resident.faults.clear("state_ids")

    await life.until_full(room)

    check_truth(life.ours, room, join, [], all_announced=False)


async def test_an_invite_of_ours_protects_no_parents_that_nobody_has(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """Anybody may invite; only by a join are we in the room."""
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    invite = room.send_state(
        "m.room.member",
        {"membership": "invite"},
        state_key=f"@carol:{life.server_name}",
        prev_events=["$" + "z" * 43],
        state_before=room.current_state(),
        rejected=True,
    )
    await life.receive([invite])
    assert life.membership(room, f"@carol:{life.server_name}") == "invite"
    life.release_resync()

    await life.until_full(room)

    assert life.ours.rejected(room) == {invite.event_id}
    assert life.ours.current_state(room) == room.current_state()


async def test_parents_are_waited_for_longer_while_who_may_have_them_is_away(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    user = remote_user(life, room, 1)
    life.hold_resync()
    join = await life.join(room)
    state = room.current_state()
    half = room.message("Half", sender=user, prev_events=["$" + "x" * 43, join], state_before=state)
    await life.receive([half], by=1)
    life.release_resync()
    simulated.residents[1].faults.refuse("state_ids", 500, "M_UNKNOWN")

    await life.until_full(room)

    assert life.ours.job(room)["unknown_parent_attempts"] == PARENT_ATTEMPTS_DURING_OUTAGE


async def test_a_cycle_does_not_keep_the_room_partial(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """In versions 1 and 2 the sender chooses the ids of events, so two can follow each other."""
    life = life_on_sqlite
    room = make_room(simulated, "1")
    user = remote_user(life, room)
    resident = simulated.residents[0]
    life.hold_resync()
    join = await life.join(room)
    ids = [f"${name}:{resident.server_name}" for name in ("one", "other")]
    template = parse_json(room.message("Cycle", sender=user).json)
    pdus = []
    for own, parent in (ids, ids[::-1]):
        pdu = {key: value for key, value in template.items() if key not in ("hashes", "signatures")}
        pdu |= {"event_id": own, "prev_events": [[parent, {"sha256": "x"}]]}
        version = get_room_version("1")
        identity = resident.identity
        pdus.append(sign_event(pdu, version, identity.server_name, identity.key))
    status, answer = await life.request(
        resident.identity,
        "PUT",
        target("v1", "send", "cycle"),
        {"origin": resident.server_name, "origin_server_ts": 1, "pdus": pdus},
    )
    assert (status, answer) == (200, {"pdus": {event_id: {} for event_id in ids}})
    await until(lambda: life.graph().issuperset(ids))
    life.release_resync()

    await life.until_full(room)

    assert join in life.graph()
    assert life.ours.rejected(room) & set(ids)
