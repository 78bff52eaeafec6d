"""Joins over the real wire: what they store, and that a join that fails stores nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from federation.simulator import SimulatedFederation, lies
from federation.simulator.certificates import write_certificate
from federation.simulator.faults import (
    CutShort,
    Disconnect,
    Fault,
    Garbage,
    IgnoreOmitMembers,
    Lie,
    Oversize,
    Refuse,
    Truncate,
)
from resync.errors import JoinFailed
from resync.join import JoinResult
from resync.join_request import InvalidJoinRequest
from tests.integration.resync.our_server import (
    ALICE,
    BOB,
    SERVER_NAME,
    OurServer,
    as_plain,
    free_port,
    until,
)
from tests.integration.resync.truth import check_truth

STATE_WITHOUT_MEMBERS = (
    ("m.room.create", ""),
    ("m.room.power_levels", ""),
    ("m.room.join_rules", ""),
    ("m.room.history_visibility", ""),
    ("m.room.name", ""),
)


@pytest.mark.parametrize("room_version", ["1", "3", "10", "11", "12"])
async def test_a_partial_join_is_stored_row_by_row(
    room_version: str, simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room(room_version, members=20)
    before = room.current_state()
    tips = sorted(room.forward_extremities)

    joined = await ours.join(room)

    join_id = joined.join_event_id
    join = room.events[join_id]
    state = {key: before[key] for key in before if tuple(key) in STATE_WITHOUT_MEMBERS}
    chain = set(room.auth_chain([*state.values(), join_id]))
    via = simulated.server_names[0]
    assert joined == JoinResult(room.room_id, join_id, True, 5, 3)
    assert ours.query(
        "SELECT room_id, device_lists_stream_id, join_event_id, joined_via FROM partial_state_rooms"
    ) == [(room.room_id, 0, join_id, via)]
    assert sorted(ours.query("SELECT room_id, server_name FROM partial_state_rooms_servers")) == [
        (room.room_id, name) for name in sorted([*simulated.server_names, *simulated.unreachable])
    ]
    assert ours.query("SELECT room_id, event_id FROM partial_state_events") == [
        (room.room_id, join_id)
    ]
    assert ours.query("SELECT room_id, room_version, creator FROM rooms") == [
        (room.room_id, room_version, room.creator)
    ]

    everything = {*state.values(), *chain, join_id}
    rows = ours.query(
        "SELECT event_id, room_id, type, state_key, sender, depth, outlier, origin_server_ts"
        " FROM events"
    )
    assert sorted(tuple(row[:6]) for row in rows) == sorted(
        (event_id, room.room_id, event.type, event.state_key, event.sender, event.depth)
        for event_id, event in ((event_id, room.events[event_id]) for event_id in everything)
    )
    assert {row[0] for row in rows if not row[6]} == {join_id}
    texts = dict(ours.query("SELECT event_id, json FROM event_json"))
    assert texts.keys() == everything
    for event_id, text in texts.items():
        if event_id != join_id:
            assert json.loads(text) == room.pdu(event_id)
    assert ours.query("SELECT event_id FROM rejections") == []
    assert sorted(ours.query("SELECT event_id, type, state_key FROM state_events")) == sorted(
        (event_id, room.events[event_id].type, room.events[event_id].state_key)
        for event_id in everything
    )
    assert sorted(ours.query("SELECT event_id, auth_id FROM event_auth")) == sorted(
        (event_id, auth_id)
        for event_id in everything
        for auth_id in room.events[event_id].auth_event_ids
    )
    assert sorted(ours.query("SELECT event_id, user_id, membership FROM room_memberships")) == (
        sorted(
            (event_id, room.events[event_id].state_key, room.events[event_id].membership)
            for event_id in everything
            if room.events[event_id].membership
        )
    )

    # The join's place in the graph.
    assert sorted(ours.query("SELECT event_id, prev_event_id FROM event_edges")) == [
        (join_id, prev_id) for prev_id in tips
    ]
    assert ours.query("SELECT event_id, room_id FROM event_forward_extremities") == [
        (join_id, room.room_id)
    ]
    assert ours.column("SELECT event_id FROM event_backward_extremities") == tips
    assert ours.query("SELECT room_id, min_depth FROM room_depth") == [(room.room_id, join.depth)]

    # Its state: what came, and the join itself.
    after = as_plain({**state, ("m.room.member", ALICE): join_id})
    assert ours.states_after([join_id]) == {join_id: after}
    assert ours.current_state(room) == after
    delta = ours.query(
        "SELECT type, state_key, event_id, prev_event_id FROM current_state_delta_stream"
    )
    assert sorted(delta) == sorted((*key, event_id, None) for key, event_id in after.items())
    assert ours.query(
        "SELECT user_id, room_id, membership, event_id FROM local_current_membership"
    ) == [(ALICE, room.room_id, "join", join_id)]

    job = ours.job(room)
    assert (job["room_version"], job["joined_via"], job["join_event_id"]) == (
        room_version,
        via,
        join_id,
    )
    assert (job["attempts"], job["completed_ts"], job["last_error"], job["given_up"]) == (
        0,
        None,
        None,
        [],
    )
    assert job["created_ts"] == job["next_attempt_ts"] > 0
    assert ours.announced_rooms() == []
    assert ours.announced_events() == {}


async def test_the_heroes_of_a_nameless_room_are_part_of_the_partial_state(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=20, name=None)

    joined = await ours_on_sqlite.join(room)

    members = [key for key in ours_on_sqlite.current_state(room) if key[0] == "m.room.member"]
    assert joined.state_events == 4 + 5
    assert len(members) == 5 + 1


async def test_a_resident_that_ignores_omit_members_gives_a_full_join(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=40)
    truth = as_plain(room.current_state())
    simulated.residents[0].faults.add("send_join", IgnoreOmitMembers())

    joined = await ours.join(room)

    assert not joined.partial
    assert joined.state_events == len(truth)
    truth["m.room.member", ALICE] = joined.join_event_id
    assert ours.current_state(room) == truth
    assert ours.states_after([joined.join_event_id]) == {joined.join_event_id: truth}
    assert ours.partial_rows() == []
    assert ours.query("SELECT * FROM resync_jobs") == []
    await ours.resync()
    assert simulated.residents[0].requests.count("state_ids") == 0
    assert ours.announced_rooms() == []


async def test_the_join_of_a_restricted_room_is_stored_with_the_residents_signature(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=10)
    room.set_join_rules("restricted", [{"type": "m.room_membership", "room_id": "!space:remote"}])

    joined = await ours_on_sqlite.join(room)

    ((text,),) = ours_on_sqlite.query(
        "SELECT json FROM event_json WHERE event_id = :id", id=joined.join_event_id
    )
    join = json.loads(text)
    assert join["signatures"].keys() == {SERVER_NAME, simulated.server_names[0]}
    assert join["content"]["join_authorised_via_users_server"] == room.creator
    await ours_on_sqlite.resync()
    check_truth(ours_on_sqlite, room, joined.join_event_id, [])


async def test_the_resident_fetches_the_key_that_we_serve(
    simulated: SimulatedFederation, sqlite_url: str, tmp_path: Path
) -> None:
    certificate = write_certificate(tmp_path)
    port = free_port()
    server_name = f"127.0.0.1:{port}"
    listen = {
        "bind": "127.0.0.1",
        "port": port,
        "tls_certificate_path": str(certificate.certificate),
        "tls_private_key_path": str(certificate.private_key),
    }
    ours = OurServer(
        tmp_path, sqlite_url, simulated, server_name=server_name, federation={"listen": listen}
    )
    room = simulated.create_room("11", members=10)

    async with ours.worker() as worker:
        joined = await worker.join(
            room.room_id, simulated.server_names[:1], f"@alice:{server_name}"
        )
        await worker.run(once=True)

    check_truth(ours, room, joined.join_event_id, [])


# -- joins that fail ----------------------------------------------------------------------------

LIES_IN_SEND_JOIN: dict[str, tuple[Fault, str]] = {
    "forbidden": (Refuse(403, "M_FORBIDDEN"), "403 M_FORBIDDEN"),
    "unknown room": (Refuse(404, "M_NOT_FOUND"), "404 M_NOT_FOUND"),
    "partial state itself": (
        Refuse(404, "ORG.MATRIX.MSC3895_UNABLE_DUE_TO_PARTIAL_STATE"),
        "UNABLE_DUE_TO_PARTIAL_STATE",
    ),
    "server error": (Refuse(500, "M_UNKNOWN"), "500 M_UNKNOWN"),
    "disconnected": (Disconnect(), "connection"),
    "truncated": (Truncate(0.5), ""),
    "cut short": (CutShort(0.5), ""),
    "not JSON": (Garbage(), "JSON"),
    "too large": (Oversize(1 << 22), "longer"),
    "not an object": (Garbage(b"[]"), ""),
    "no state": (Lie(lies.remove_field("state")), "`state`"),
    "no auth chain": (Lie(lies.remove_field("auth_chain")), "`auth_chain`"),
    "empty state": (Lie(lies.only("state", 0)), "create event"),
    "no create event": (
        Lie(lies.leave_out("state", containing='"m.room.create"')),
        "create event",
    ),
    "create event badly signed": (
        # It is in the state and, as an auth event of others, in nothing else.
        Lie(lies.bad_signatures("state")),
        "create event",
    ),
    "auth events badly signed": (Lie(lies.bad_signatures("auth_chain", 50)), "auth events"),
    "auth events unsigned": (Lie(lies.no_signatures("auth_chain", 50)), "auth events"),
    "auth events left out": (Lie(lies.leave_out("auth_chain", 50)), "auth events"),
    "auth events with floats": (Lie(lies.floats("auth_chain", 50)), "auth events"),
    "auth events of another room": (
        Lie(lies.other_room("auth_chain", "!other:remote", 50)),
        "auth events",
    ),
    "auth events that are not those asked for": (
        Lie(lies.other_ids("auth_chain", 50)),
        "auth events",
    ),
    "no servers": (Lie(lies.set_field("servers_in_room", [])), "servers_in_room"),
    "servers that are no servers": (
        Lie(lies.set_field("servers_in_room", ["!", "a b", "x" * 300])),
        "servers_in_room",
    ),
    "members_omitted is no boolean": (Lie(lies.set_field("members_omitted", "yes")), "true or"),
    "a join that is no object": (Lie(lies.set_field("event", [1])), "event"),
    "state that is no list": (Lie(lies.set_field("state", {"a": 1})), "state"),
}

LIES_IN_MAKE_JOIN: dict[str, tuple[Fault, str]] = {
    "forbidden": (Refuse(403, "M_FORBIDDEN"), "403 M_FORBIDDEN"),
    "unknown room": (Refuse(404, "M_NOT_FOUND"), "404 M_NOT_FOUND"),
    "incompatible": (
        Refuse(400, "M_INCOMPATIBLE_ROOM_VERSION"),
        "400 M_INCOMPATIBLE_ROOM_VERSION",
    ),
    "disconnected": (Disconnect(), "connection"),
    "truncated": (Truncate(0.5), ""),
    "not JSON": (Garbage(), "JSON"),
    "too large": (Oversize(1 << 22), "larger"),
    "unknown room version": (Lie(lies.set_field("room_version", "org.example.9")), "org.example.9"),
    "room version is a number": (Lie(lies.set_field("room_version", 10)), "room_version"),
    "no event": (Lie(lies.remove_field("event")), "event"),
    "wrong room version": (Lie(lies.set_field("room_version", "9")), ""),
    "no room version": (Lie(lies.remove_field("room_version")), ""),
}


def _template_with(**changes: Any) -> Fault:
    """A `make_join` template that differs in some fields; None leaves a field out."""

    def tell(answer: Any) -> Any:
        event = json.loads(answer.fields["event"])
        event.update(changes)
        event = {name: value for name, value in event.items() if value is not None}
        return lies.set_field("event", event)(answer)

    return Lie(tell)


TEMPLATES: dict[str, tuple[Fault, str]] = {
    "for another user": (_template_with(sender="@mallory:remote"), "sender"),
    "for another member": (_template_with(state_key="@mallory:remote"), "state_key"),
    "for another room": (_template_with(room_id="!other:remote"), "room_id"),
    "of another type": (_template_with(type="m.room.power_levels"), "type"),
    "of another membership": (_template_with(content={"membership": "ban"}), "membership"),
    "without content": (_template_with(content=None), "membership"),
    "without prev_events": (_template_with(prev_events=[]), "prev_events"),
    "with prev_events that are no list": (_template_with(prev_events="$a"), "prev_events"),
    "with too many prev_events": (
        _template_with(prev_events=[f"${number:043}" for number in range(21)]),
        "too many",
    ),
    "with too many auth_events": (
        _template_with(auth_events=[f"${number:043}" for number in range(11)]),
        "too many",
    ),
    "with a float as depth": (_template_with(depth=1.5), "depth"),
    "with a depth out of range": (_template_with(depth=2**60), "out"),
    "with a negative depth": (_template_with(depth=-1), "depth"),
    "with an authoriser that is no text": (
        _template_with(
            content={"membership": "join", "join_authorised_via_users_server": {"a": 1.5}}
        ),
        "",
    ),
}


@pytest.mark.parametrize(
    ("endpoint", "lie"),
    [
        *(("send_join", name) for name in LIES_IN_SEND_JOIN),
        *(("make_join", name) for name in LIES_IN_MAKE_JOIN),
        *(("template", name) for name in TEMPLATES),
    ],
)
async def test_a_join_that_fails_leaves_nothing(
    endpoint: str, lie: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """And the join through another server that follows is as if nothing had happened."""
    kinds = {"send_join": LIES_IN_SEND_JOIN, "make_join": LIES_IN_MAKE_JOIN, "template": TEMPLATES}
    fault, reason = kinds[endpoint][lie]
    room = simulated.create_room("10", members=5)
    resident, honest = simulated.residents
    resident.faults.add("make_join" if endpoint == "template" else endpoint, fault)
    nothing = ours_on_sqlite.contents()

    with pytest.raises(JoinFailed) as failed:
        await ours_on_sqlite.join(room)

    assert resident.server_name in str(failed.value)
    assert reason in str(failed.value)
    assert ours_on_sqlite.contents() == nothing
    # What we would not accept from others we do not sign either, as far as we can see it.
    can_be_seen = endpoint != "send_join" and lie != "wrong room version"
    assert resident.requests.count("send_join") == (0 if can_be_seen else 1)

    joined = await ours_on_sqlite.join(room, via=[resident.server_name, honest.server_name])

    assert ours_on_sqlite.query("SELECT joined_via FROM partial_state_rooms") == [
        (honest.server_name,)
    ]
    await ours_on_sqlite.resync()
    check_truth(ours_on_sqlite, room, joined.join_event_id, [])


async def test_a_template_without_auth_events_fails_the_join(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    simulated.residents[0].faults.add("make_join", _template_with(auth_events=[]))
    nothing = ours_on_sqlite.contents()

    with pytest.raises(JoinFailed, match="no create event"):
        await ours_on_sqlite.join(room)

    assert ours_on_sqlite.contents() == nothing


async def test_two_events_for_one_state_entry_fail_the_join(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    old_topic = room.set_topic("Before")
    room.set_topic("After")
    simulated.residents[0].faults.lie("send_join", lies.extra("state", [old_topic.json]))
    nothing = ours_on_sqlite.contents()

    with pytest.raises(JoinFailed, match=r"two events.*m\.room\.topic"):
        await ours_on_sqlite.join(room)

    assert ours_on_sqlite.contents() == nothing


async def test_a_message_in_the_state_fails_the_join(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    message = room.message()
    simulated.residents[0].faults.lie("send_join", lies.extra("state", [message.json]))
    nothing = ours_on_sqlite.contents()

    with pytest.raises(JoinFailed, match="not a state event"):
        await ours_on_sqlite.join(room)

    assert ours_on_sqlite.contents() == nothing


async def test_what_else_a_resident_sends_wrong_is_left_out_of_the_join(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """A bad signature drops, a bad content hash redacts, a failed auth check rejects."""
    room = simulated.create_room("10", members=5)
    unsigned = room.send_state("org.example.unsigned", {}, signers=[])
    changed = room.set_topic("Secret")
    outsider = f"@outsider:{simulated.server_names[1]}"
    forbidden = room.send_state(
        "org.example.forbidden", {}, sender=outsider, rejected=True, prev_events=[changed.event_id]
    )
    tampered = {**room.pdu(changed.event_id), "content": {"topic": "Tampered with"}}

    def tell(answer: Any) -> Any:
        kept = [item for item in answer.items("state") if b'"m.room.topic"' not in item]
        told = answer.with_field("state", kept)
        return lies.extra("state", [tampered, forbidden.json])(told)

    simulated.residents[0].faults.lie("send_join", tell)

    await ours_on_sqlite.join(room)

    state = ours_on_sqlite.current_state(room)
    stored = dict(ours_on_sqlite.query("SELECT event_id, json FROM event_json"))
    assert unsigned.event_id not in stored
    assert ("org.example.unsigned", "") not in state
    assert state["m.room.topic", ""] == changed.event_id
    assert json.loads(stored[changed.event_id])["content"] == {}
    assert ours_on_sqlite.rejected(room) == {forbidden.event_id}
    assert ("org.example.forbidden", "") not in state


async def test_a_join_that_the_database_refuses_half_way_leaves_nothing(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    # The job is what is stored last.
    if ours.database_url.startswith("sqlite"):
        ours.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON resync_jobs"
            " BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
        )
        allow = "DROP TRIGGER refuse"
    else:
        ours.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE integrity_constraint_violation; END $$"
        )
        ours.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON resync_jobs"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        allow = "DROP FUNCTION refuse CASCADE"
    nothing = ours.contents()
    try:
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            await ours.join(room)
        assert ours.contents() == nothing
    finally:
        ours.execute(allow)

    joined = await ours.join(room)
    await ours.resync()
    check_truth(ours, room, joined.join_event_id, [])


async def test_servers_are_tried_in_turn(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    first, second = simulated.residents
    await first.disappear()
    (unreachable,) = simulated.unreachable

    with pytest.raises(JoinFailed) as failed:
        await ours_on_sqlite.join(room, via=[unreachable, first.server_name])
    for name in (unreachable, first.server_name):
        assert name in str(failed.value)
    assert second.requests.count("make_join") == 0

    await ours_on_sqlite.join(
        room, via=[SERVER_NAME, unreachable, first.server_name, second.server_name]
    )

    assert ours_on_sqlite.query("SELECT joined_via FROM partial_state_rooms") == [
        (second.server_name,)
    ]
    assert second.requests.count("make_join") == 1


@pytest.mark.parametrize(
    ("room_id", "user_id", "via", "reason"),
    [
        ("room", ALICE, ["remote"], "room"),
        ("#alias:remote", ALICE, ["remote"], "#alias:remote"),
        ("!", ALICE, ["remote"], "!"),
        ("!room:" + "x" * 300, ALICE, ["remote"], "room"),
        ("!room:remote", "alice", ["remote"], "alice"),
        ("!room:remote", f"@alice\0:{SERVER_NAME}", ["remote"], "alice"),
        ("!room:remote", "@alice:elsewhere.test", ["remote"], SERVER_NAME),
        ("!room:remote", ALICE, ["not a server"], "not a server"),
        ("!room:remote", ALICE, ["remote:99999999"], "remote:99999999"),
        ("!room:remote", ALICE, [], "at least one"),
        ("!room:remote", ALICE, [SERVER_NAME], "at least one"),
        ("!room:remote", ALICE, [f"server{n}.test" for n in range(51)], "at most 50"),
    ],
)
async def test_malformed_wishes_are_refused_before_anything_is_asked(
    room_id: str, user_id: str, via: list[str], reason: str, ours_on_sqlite: OurServer
) -> None:
    nothing = ours_on_sqlite.contents()
    async with ours_on_sqlite.worker() as worker:
        with pytest.raises(InvalidJoinRequest) as refused:
            await worker.join(room_id, via, user_id)
    assert reason in str(refused.value)
    assert ours_on_sqlite.contents() == nothing


# -- who is in the room already ------------------------------------------------------------------


async def test_a_user_who_has_joined_is_not_joined_again(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=5)
    first = await ours.join(room)
    before = ours.contents()

    again = await ours.join(room, via=simulated.server_names[1:])

    assert again.join_event_id == first.join_event_id
    assert again.partial
    assert ours.contents() == before
    assert [one.requests.count("send_join") for one in simulated.residents] == [1, 0]


async def test_a_second_user_joins_while_the_room_is_partial(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    alice = await ours.join(room)
    topic = room.set_topic("Set between the joins")

    bob = await ours.join(room, BOB, via=simulated.server_names[1:])

    # What the first join brought is kept.
    assert ours.query("SELECT join_event_id, joined_via FROM partial_state_rooms") == [
        (alice.join_event_id, simulated.server_names[0])
    ]
    assert ours.column("SELECT event_id FROM partial_state_events") == sorted(
        [alice.join_event_id, bob.join_event_id]
    )
    assert SERVER_NAME in ours.column("SELECT server_name FROM partial_state_rooms_servers")
    state = ours.current_state(room)
    assert state["m.room.member", ALICE] == alice.join_event_id
    assert state["m.room.member", BOB] == bob.join_event_id
    assert ours.query("SELECT COUNT(*) FROM resync_jobs") == [(1,)]

    await ours.resync()

    check_truth(ours, room, alice.join_event_id, [room.events[bob.join_event_id]])
    assert ours.current_state(room)["m.room.topic", ""] == topic.event_id


async def test_a_room_does_not_fall_back_into_partial_state(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=20)
    await ours_on_sqlite.join(room)
    await ours_on_sqlite.resync()
    before = ours_on_sqlite.contents()

    with pytest.raises(JoinFailed, match="fully stated"):
        await ours_on_sqlite.join(room, BOB)

    assert ours_on_sqlite.contents() == before


async def test_a_join_that_is_slower_than_the_resync_does_not_undo_it(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """The room becomes fully stated while the second user's `/send_join` is under way."""
    room = simulated.create_room("10", members=20)
    await ours.join(room)
    slow = simulated.residents[1]
    slow.faults.stall("send_join")

    async with ours.worker() as worker:
        second = asyncio.create_task(worker.join(room.room_id, [slow.server_name], BOB))
        await until(lambda: slow.requests.count("send_join"))
        await worker.run(once=True)
        assert ours.partial_rows() == []
        full = ours.current_state(room)
        slow.faults.clear()
        with_or_without = await asyncio.gather(second, return_exceptions=True)

    assert isinstance(with_or_without[0], JoinResult | JoinFailed)
    assert ours.partial_rows() == []
    assert full.items() <= ours.current_state(room).items()


async def test_two_joins_of_one_room_at_the_same_time(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=20)

    async with ours.worker() as worker:
        alice, bob = await asyncio.gather(
            worker.join(room.room_id, simulated.server_names[:1], ALICE),
            worker.join(room.room_id, simulated.server_names[1:], BOB),
        )
        assert ours.column("SELECT event_id FROM partial_state_events") == sorted(
            [alice.join_event_id, bob.join_event_id]
        )
        await worker.run(once=True)

    check_truth(ours, room, alice.join_event_id, [room.events[bob.join_event_id]])
