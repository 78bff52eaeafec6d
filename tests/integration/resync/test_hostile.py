"""Residents that lie: what they send wrong is dropped, redacted or rejected, and the room finishes.

Where one resident lies and another does not, the room ends with the truth. Where all lie, it ends
with what is left, and what was given up is shown with the room.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federation.client import RawPdu
from federation.simulator import (
    ALL_JOINED,
    BuiltEvent,
    Resident,
    RoomBuilder,
    SimulatedFederation,
    lies,
)
from federation.simulator.faults import CutShort, Fault, Garbage, Oversize, Trickle, Truncate
from resync.patience import EVENT_ATTEMPTS
from resync.state_fetch import MAX_SINGLE_EVENTS
from storage import destinations
from tests.integration.resync.our_server import ALICE, OurServer, State, as_plain
from tests.integration.resync.truth import check_truth

Tell = Callable[[Any], Any]

MEMBERS = 40


def members_of(room: RoomBuilder, count: int) -> list[BuiltEvent]:
    """The member events of some users in the current state, none of them the creator's."""
    members = [
        room.events[event_id]
        for key, event_id in room.current_state().items()
        if key.type == "m.room.member" and key.state_key != room.creator
    ]
    return members[:count]


def lie_about(resident: Resident, event: BuiltEvent, lie: Callable[[str], Tell]) -> None:
    """Has `resident` tell `lie(field)` wherever it sends `event`, and about nothing else."""

    def tell(answer: Any) -> Any:
        for name in ("pdus", "auth_chain"):
            items = answer.items(name)
            if event.json in items:
                forged = lie(name)(answer.with_field(name, [event.json])).items(name)
                others = [item for item in items if item != event.json]
                answer = answer.with_field(name, forged + others)
        return answer

    for endpoint in ("state", "event"):
        resident.faults.lie(endpoint, tell)


def given_up(ours: OurServer, room: RoomBuilder) -> dict[str, str]:
    return dict(ours.job(room)["given_up"])


async def finish(ours: OurServer, room: RoomBuilder) -> None:
    """Tries until events that may pass the checks later are given up."""
    for attempt in range(EVENT_ATTEMPTS):
        await ours.resync()
        assert ours.job(room)["attempts"] == attempt + 1
        assert "cannot be had for now" in ours.job(room)["last_error"]
        await ours.run("trigger", room.room_id)
    await ours.resync()


def check_given_up(
    ours: OurServer, room: RoomBuilder, join_event_id: str, lost: dict[str, BuiltEvent]
) -> None:
    """Checks that the room is done, and that of its true state only `lost` is missing.

    `lost`: by a part of the reason that is given.
    """
    assert ours.partial_rows() == []
    assert ours.announced_rooms() == [room.room_id]
    expected = as_plain(room.state_after(join_event_id))
    for event in lost.values():
        assert event.state_key is not None
        assert expected.pop((event.type, event.state_key)) == event.event_id
    assert ours.current_state(room) == expected
    assert ours.states_after([join_event_id]) == {join_event_id: expected}
    shown = given_up(ours, room)
    assert shown.keys() == {event.event_id for event in lost.values()}
    for reason, event in lost.items():
        assert reason in shown[event.event_id]


async def test_dropped_redacted_and_rejected_are_told_apart(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=MEMBERS, mix=ALL_JOINED)
    forged, changed, *_ = members_of(room, 2)
    outsider = f"@outsider:{simulated.server_names[1]}"
    forbidden = room.send_state("org.example.forbidden", {}, sender=outsider, rejected=True)
    joined = await ours.join(room)
    for resident in simulated.residents:
        lie_about(resident, forged, lies.bad_signatures)
        lie_about(resident, changed, lies.wrong_hashes)
        resident.faults.lie("state_ids", lies.extra("pdu_ids", [forbidden.event_id]))
        resident.faults.lie("state", lies.extra("pdus", [forbidden.json]))

    await ours.resync()

    check_given_up(ours, room, joined.join_event_id, {"signature": forged})
    stored = dict(ours.query("SELECT event_id, json FROM event_json"))
    assert forged.event_id not in stored
    assert forged.sender.partition(":")[2] in given_up(ours, room)[forged.event_id]

    redacted = json.loads(stored[changed.event_id])
    assert room.pdu(changed.event_id)["content"].keys() == {"membership", "displayname"}
    assert redacted["content"] == {"membership": "join"}
    assert redacted["signatures"] == room.pdu(changed.event_id)["signatures"]
    names = "SELECT display_name FROM room_memberships WHERE event_id = :id"
    assert ours.query(names, id=changed.event_id) == [(None,)]

    assert ours.rejected(room) == {forbidden.event_id}
    ((reason,),) = ours.query("SELECT reason FROM rejections")
    assert "not" in reason
    assert json.loads(stored[forbidden.event_id]) == room.pdu(forbidden.event_id)


BAD_EVENTS: dict[str, tuple[Callable[[str], Tell], str]] = {
    "bad signature": (lies.bad_signatures, "signature"),
    "no signature": (lies.no_signatures, "sign"),
    "float": (lies.floats, "float"),
    "integer out of range": (lies.large_integers, "range"),
    "too large": (lies.huge_strings, "65536"),
    "no sender": (lambda field: lies.missing_keys(field, "sender"), "sender"),
    "no type": (lambda field: lies.missing_keys(field, "type"), "type"),
    "no depth": (lambda field: lies.missing_keys(field, "depth"), "depth"),
    "no content": (lambda field: lies.missing_keys(field, "content"), "content"),
    "no hashes": (lambda field: lies.missing_keys(field, "hashes"), "hashes"),
    "no auth_events": (lambda field: lies.missing_keys(field, "auth_events"), "auth_events"),
    "of another room": (lambda field: lies.other_room(field, "!other:remote"), ""),
    "another event than was asked for": (lies.other_ids, ""),
    "no event at all": (
        lambda field: lambda answer: answer.with_field(field, [b"{}", *answer.items(field)[1:]]),
        "",
    ),
}


@pytest.mark.parametrize("bad", BAD_EVENTS)
async def test_an_event_that_everybody_sends_wrong_is_given_up_with_the_reason(
    bad: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    lie, reason = BAD_EVENTS[bad]
    room = simulated.create_room("10", members=MEMBERS)
    (event,) = members_of(room, 1)
    joined = await ours_on_sqlite.join(room)
    for resident in simulated.residents:
        lie_about(resident, event, lie)

    await ours_on_sqlite.resync()

    check_given_up(ours_on_sqlite, room, joined.join_event_id, {reason: event})
    stored = ours_on_sqlite.column("SELECT event_id FROM events")
    assert set(stored) <= room.events.keys()
    assert event.event_id not in stored
    shown = await ours_on_sqlite.status(room)
    assert shown["state"] == "complete"
    assert [one["event_id"] for one in shown["given_up"]] == [event.event_id]


@pytest.mark.parametrize("bad", BAD_EVENTS)
async def test_an_event_that_one_server_sends_wrong_comes_from_another(
    bad: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    lie, _ = BAD_EVENTS[bad]
    room = simulated.create_room("10", members=MEMBERS)
    (event,) = members_of(room, 1)
    joined = await ours_on_sqlite.join(room)
    lie_about(simulated.residents[0], event, lie)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert given_up(ours_on_sqlite, room) == {}


async def test_what_only_the_large_answer_has_wrong_is_put_right_by_single_requests(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    simulated.residents[0].faults.lie("state", lies.bad_signatures("pdus", 5))
    simulated.residents[0].faults.lie("state", lies.leave_out("auth_chain", 5))

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert given_up(ours_on_sqlite, room) == {}
    assert simulated.residents[1].requests.count("state_ids") == 0


# -- answers that cannot be used at all ----------------------------------------------------------

USELESS: dict[str, tuple[str, Fault | Tell]] = {
    "state_ids truncated": ("state_ids", Truncate(0.5)),
    "state_ids cut short": ("state_ids", CutShort(0.5)),
    "state_ids is no JSON": ("state_ids", Garbage()),
    "state_ids is a list": ("state_ids", Garbage(b"[]")),
    "state_ids without pdu_ids": ("state_ids", lies.remove_field("pdu_ids")),
    "state_ids without auth_chain_ids": ("state_ids", lies.remove_field("auth_chain_ids")),
    "state_ids with objects for ids": ("state_ids", lies.extra("pdu_ids", [{"id": 1}])),
    "state_ids with malformed ids": ("state_ids", lies.extra("pdu_ids", ["no id"])),
    "state_ids is empty": ("state_ids", lies.only("pdu_ids", 0)),
    "state_ids nested absurdly": ("state_ids", lies.deep_nesting("pdu_ids")),
    "state_ids too large": ("state_ids", Oversize(101 << 20)),
    "state truncated": ("state", Truncate(0.5)),
    "state cut short": ("state", CutShort(0.5)),
    "state is no JSON": ("state", Garbage()),
    "state without pdus": ("state", lies.remove_field("pdus")),
    "state without auth_chain": ("state", lies.remove_field("auth_chain")),
    "state with null": ("state", lies.not_events("pdus")),
    "state where pdus is an object": ("state", lies.set_field("pdus", {})),
}


@pytest.mark.parametrize("useless", USELESS)
async def test_another_server_is_asked_for_what_cannot_be_used(
    useless: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    endpoint, fault = USELESS[useless]
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    if isinstance(fault, Fault):
        resident.faults.add(endpoint, fault)
    else:
        resident.faults.lie(endpoint, fault)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert given_up(ours_on_sqlite, room) == {}
    assert other.requests.count("state_ids") == 1


HARMLESS: dict[str, tuple[str, Tell]] = {
    "duplicate ids": ("state_ids", lies.duplicates("pdu_ids", 10)),
    "the state in the auth chain too": ("state_ids", lies.duplicates("auth_chain_ids", 10)),
    "duplicate events": ("state", lies.duplicates("pdus", 10)),
    "a field nested absurdly": ("state_ids", lies.deep_nesting("deep")),
    "a list that is nested absurdly": ("state", lies.deep_nesting("pdus")),
    "a huge field": ("state", lies.set_field("huge", "x" * 200_000)),
}


@pytest.mark.parametrize("harmless", HARMLESS)
async def test_what_does_no_harm_is_borne(
    harmless: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    endpoint, lie = HARMLESS[harmless]
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    simulated.residents[0].faults.lie(endpoint, lie)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert simulated.residents[1].requests.count("state_ids") == 0


async def test_answers_that_cannot_be_used_leave_the_room_waiting_with_a_clear_reason(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Nothing is half written: the room is as partial as it was."""
    room = simulated.create_room("10", members=MEMBERS)
    await ours.join(room)
    before = ours.contents()
    for resident in simulated.residents:
        resident.faults.add("state_ids", Garbage())

    await ours.resync()

    job = ours.job(room)
    assert job["attempts"] == 1
    for server_name in simulated.server_names:
        assert server_name in job["last_error"]
    assert "JSON" in job["last_error"]
    after = ours.contents()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"resync_jobs", "destinations", "stream_positions"}


async def test_an_answer_that_trickles_in_is_given_up(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Never silent for long, and never done: the rate decides."""
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    resident.faults.add("state_ids", Trickle(piece=10, interval=0.05))

    await ours_on_sqlite.resync(silence=0.5)

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert other.requests.count("state_ids") == 1


# -- state that contradicts itself ---------------------------------------------------------------


@pytest.fixture
async def renamed(simulated: SimulatedFederation) -> tuple[RoomBuilder, BuiltEvent]:
    """A room, and a member event in it that another one has replaced."""
    room = simulated.create_room("10", members=MEMBERS, mix=ALL_JOINED)
    (old,) = members_of(room, 1)
    assert old.state_key is not None
    room.rename(old.state_key, "Another name")
    room.message("The state before it is the one that is asked for")
    return room, old


async def test_two_events_for_one_state_entry(
    simulated: SimulatedFederation,
    ours_on_sqlite: OurServer,
    renamed: tuple[RoomBuilder, BuiltEvent],
) -> None:
    room, old = renamed
    joined = await ours_on_sqlite.join(room)
    for resident in simulated.residents:
        resident.faults.lie("state_ids", lies.extra("pdu_ids", [old.event_id]))

    await ours_on_sqlite.resync()

    job = ours_on_sqlite.job(room)
    assert "two events for the state entry" in job["last_error"]
    assert str(old.state_key) in job["last_error"]
    assert ours_on_sqlite.query("SELECT event_id FROM partial_state_events") == [
        (joined.join_event_id,)
    ]
    assert ours_on_sqlite.announced_rooms() == []

    simulated.residents[1].faults.clear()
    await ours_on_sqlite.run("trigger", room.room_id)
    await ours_on_sqlite.resync()
    check_truth(ours_on_sqlite, room, joined.join_event_id, [])


async def test_a_message_named_as_state(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=MEMBERS)
    message = room.message()
    joined = await ours_on_sqlite.join(room)
    simulated.residents[0].faults.lie("state_ids", lies.extra("pdu_ids", [message.event_id]))

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert simulated.residents[1].requests.count("state_ids") == 1


@pytest.mark.parametrize("both", [False, True])
async def test_state_of_another_room_that_we_are_in_too(
    both: bool, simulated: SimulatedFederation, ours: OurServer
) -> None:
    """The events are stored and well signed; they have no business in this room."""
    other_room = simulated.create_room("10", members=5)
    foreign = other_room.send_state("org.example.foreign", {})
    other = await ours.join(other_room)
    await ours.resync()
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours.join(room)
    liars = simulated.residents if both else simulated.residents[:1]
    for resident in liars:
        resident.faults.lie("state_ids", lies.extra("pdu_ids", [foreign.event_id]))

    await ours.resync()

    assert foreign.event_id not in ours.current_state(room).values()
    assert (
        foreign.event_id
        not in ours.states_after([joined.join_event_id])[joined.join_event_id].values()
    )
    check_truth(ours, other_room, other.join_event_id, [], rooms=len(ours.announced_rooms()))
    if not both:
        check_truth(ours, room, joined.join_event_id, [], rooms=2)


async def test_auth_events_of_another_room(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """A state event that rests on power levels of another room, in which its sender has power."""
    mallory = f"@mallory:{simulated.server_names[1]}"
    other_room = simulated.create_room("10", members=5, creator=mallory)
    foreign = other_room.send_state("org.example.foreign", {})
    await ours_on_sqlite.join(other_room)
    await ours_on_sqlite.resync()
    room = simulated.create_room("10", members=MEMBERS)
    join = room.join(mallory)
    levels = other_room.state_event(("m.room.power_levels", ""))
    create = room.state_event(("m.room.create", ""))
    assert levels is not None
    assert create is not None
    forged = room.append(
        "m.room.topic",
        {"topic": "Mine"},
        sender=mallory,
        state_key="",
        auth_events=[create.event_id, levels.event_id, join.event_id, foreign.event_id],
        rejected=True,
    )
    joined = await ours_on_sqlite.join(room)
    named = [forged.event_id, foreign.event_id]
    for resident in simulated.residents:
        resident.faults.lie("state_ids", lies.extra("pdu_ids", named))
        resident.faults.lie("state", lies.extra("pdus", [forged.json]))

    await ours_on_sqlite.resync()

    assert ours_on_sqlite.rejected(room) == {forged.event_id}
    check_truth(ours_on_sqlite, room, joined.join_event_id, [], rooms=2)


# -- what is named and cannot be had -------------------------------------------------------------


async def test_ids_of_events_that_nobody_has(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    for resident in simulated.residents:
        resident.faults.lie("state_ids", lies.unknown_ids("pdu_ids", 3))
        resident.faults.lie("state_ids", lies.unknown_ids("auth_chain_ids", 5))

    await ours_on_sqlite.resync()

    assert ours_on_sqlite.current_state(room) == as_plain(room.state_after(joined.join_event_id))
    shown = given_up(ours_on_sqlite, room)
    assert len(shown) == 3
    assert all("404" in reason for reason in shown.values())
    # Every server was asked before they were given up.
    for resident in simulated.residents:
        asked = [one.target for one in resident.requests.of("event") if "$unknown" in one.target]
        assert len(asked) == len(set(asked)) == 5


async def test_far_more_ids_than_can_be_had(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Not asked for one by one: another server is asked what the state is."""
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    resident.faults.lie("state_ids", lies.unknown_ids("auth_chain_ids", 5000))

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert resident.requests.count("event") == 0
    assert other.requests.count("state_ids") == 1


async def test_missing_auth_events_are_asked_for(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """A resident that leaves the auth chain out, in the ids and in the events."""
    room = simulated.create_room("10", members=MEMBERS)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    resident.faults.lie("state_ids", lies.only("auth_chain_ids", 0))
    resident.faults.lie("state", lies.only("auth_chain", 0))

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert given_up(ours_on_sqlite, room) == {}
    assert other.requests.count("state_ids") == 0


async def test_auth_events_that_nobody_has(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """What rests on them cannot be checked, so it is given up, and nothing else."""
    room = simulated.create_room("10", members=MEMBERS, mix=ALL_JOINED)
    (member,) = members_of(room, 1)
    assert member.state_key is not None
    first = member
    second = room.rename(member.state_key, "Second")
    room.message("The state before it is the one that is asked for")
    joined = await ours_on_sqlite.join(room)
    assert first.event_id in second.auth_event_ids
    for resident in simulated.residents:
        resident.faults.lie("state_ids", leave_out_id("auth_chain_ids", first))
        resident.faults.lie("state", lies.leave_out("auth_chain", containing=sender_of(first)))
        resident.faults.refuse("event", 404, containing=first.event_id)

    await ours_on_sqlite.resync()

    check_given_up(ours_on_sqlite, room, joined.join_event_id, {"auth events": second})


def leave_out_id(field: str, event: BuiltEvent) -> Tell:
    return lies.leave_out(field, containing=event.event_id)


def sender_of(event: BuiltEvent) -> str:
    return f'"sender":"{event.sender}"'


async def test_servers_in_room_that_are_absurd(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Two hundred thousand names, some of them none, some of them huge, some of them ours."""
    room = simulated.create_room("10", members=MEMBERS)
    resident, other = simulated.residents
    names = [
        *(f"server{number}.invalid" for number in range(200_000)),
        "",
        "not a name",
        "x" * 100_000,
        "ours.test",
        7,
        None,
        ["nested"],
        {"a": "b"},
        other.server_name,
        other.server_name,
    ]
    resident.faults.lie("send_join", lies.set_field("servers_in_room", names))
    joined = await ours_on_sqlite.join(room)
    kept = ours_on_sqlite.column("SELECT server_name FROM partial_state_rooms_servers")
    assert 20 < len(kept) <= 50_001
    assert len(set(kept)) == len(kept)
    assert resident.server_name in kept
    assert all(len(name) <= 255 and " " not in name for name in kept)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert ours_on_sqlite.partial_rows() == []


async def test_keys_that_nobody_has_are_a_reason_that_is_shown(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    """The server is gone and no notary remembers its key: its members cannot be checked."""
    ours = make_ours(sqlite_url, federation={"trusted_key_servers": []})
    room = simulated.create_room("10", members=9, mix=ALL_JOINED)
    (gone,) = simulated.unreachable
    joined = await ours.join(room)

    await finish(ours, room)

    expected: State = {
        key: event_id
        for key, event_id in as_plain(room.state_after(joined.join_event_id)).items()
        if not key[1].endswith(gone)
    }
    assert ours.current_state(room) == expected
    shown = given_up(ours, room)
    assert len(shown) == 3
    assert all(gone in reason and "ed25519:" in reason for reason in shown.values())


async def test_many_members_of_a_server_whose_keys_nobody_has(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    """However many: such a room must not stay partial for ever."""
    ours = make_ours(sqlite_url, federation={"trusted_key_servers": []})
    room = simulated.create_room("10", members=3300, mix=ALL_JOINED)
    await ours.join(room)

    await finish(ours, room)

    assert ours.partial_rows() == [], ours.job(room)["last_error"]
    assert len(given_up(ours, room)) == 1100


async def test_an_event_that_one_server_makes_uncheckable_is_asked_of_others(
    sqlite_url: str, tmp_path: Path
) -> None:
    """One has named it and does not give it, the next spoils its signatures, the last is honest."""
    async with SimulatedFederation(servers=3) as simulated:
        ours = OurServer(tmp_path, sqlite_url, simulated)
        room = simulated.create_room("10", members=9, mix=ALL_JOINED)
        (member,) = members_of(room, 1)
        joined = await ours.join(room)
        first, liar, last = simulated.residents
        first.faults.refuse("event", 404, "M_NOT_FOUND", containing=member.event_id)
        for resident in simulated.residents:
            resident.faults.lie("state", lies.only("pdus", 0))
        lie_about(liar, member, lies.unknown_keys)
        async with ours.worker() as worker:
            # Asked after the others.
            now_ms = int(time.time() * 1000)
            await worker._database.run(destinations.record_failure, last.server_name, now_ms=now_ms)

        await ours.resync()

        assert liar.requests.count("event") >= 1
        assert given_up(ours, room) == {}
        check_truth(ours, room, joined.join_event_id, [])


async def test_more_bad_events_than_are_asked_for_one_by_one(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """First others are asked for all of them, some attempts long; then the room is finished."""
    room = simulated.create_room("10", members=2500, mix=ALL_JOINED)
    joined = await ours_on_sqlite.join(room)
    for resident in simulated.residents:
        resident.faults.lie("state", lies.bad_signatures("pdus", MAX_SINGLE_EVENTS + 100))

    for _ in range(EVENT_ATTEMPTS):
        await ours_on_sqlite.resync()
        assert "did not pass the checks" in ours_on_sqlite.job(room)["last_error"]
        await ours_on_sqlite.run("trigger", room.room_id)
    for resident in simulated.residents:
        assert resident.requests.count("state") == EVENT_ATTEMPTS
    await ours_on_sqlite.resync()

    assert ours_on_sqlite.partial_rows() == []
    lost = given_up(ours_on_sqlite, room)
    # All but the few that came with the join.
    assert MAX_SINGLE_EVENTS < len(lost) <= MAX_SINGLE_EVENTS + 100
    assert all("signature" in reason for reason in lost.values())
    whole = as_plain(room.state_after(joined.join_event_id))
    expected = {key: event_id for key, event_id in whole.items() if event_id not in lost}
    assert ours_on_sqlite.current_state(room) == expected


async def test_a_server_that_is_gone_does_not_hold_a_room_up_when_a_notary_answers(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=9, mix=ALL_JOINED)
    (gone,) = simulated.unreachable
    await ours_on_sqlite.join(room)
    for resident in simulated.residents:
        # An answer, without the keys that are asked for.
        resident.faults.lie("query_keys", lies.only("server_keys", 0))

    await ours_on_sqlite.resync()

    assert ours_on_sqlite.partial_rows() == []
    lost = given_up(ours_on_sqlite, room)
    assert len(lost) == 3
    assert all(gone in reason for reason in lost.values())


# -- events that are stored and must not do harm -------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_text_that_a_database_cannot_hold(
    kind: str,
    simulated: SimulatedFederation,
    make_ours: Callable[..., OurServer],
    request: pytest.FixtureRequest,
) -> None:
    """NUL is legal in JSON; PostgreSQL has no place for it."""
    ours = make_ours(request.getfixturevalue(f"{kind}_url"))
    room = simulated.create_room("10", members=MEMBERS)
    user = f"@nul:{simulated.server_names[1]}"
    member = room.join(user, "Nul \0 in a name")
    topic = room.set_topic("A \0 topic")
    room.send_state("org.example.nul", {"key \0": ["\0"]})
    odd_key = room.send_state("org.example.odd", {}, state_key="a\0b")
    quotes = {"name": "'; DROP TABLE events; --"}
    room.send_state("org.example.'\";--", quotes, state_key="%s $1 :x")
    joined = await ours.join(room)
    message = room.message("Message \0", prev_events=[joined.join_event_id])
    await ours.receive(room, [message])

    await ours.resync()

    assert ours.partial_rows() == []
    state = ours.current_state(room)
    truth = as_plain(room.state_after(joined.join_event_id))
    assert odd_key.event_id == truth.pop(("org.example.odd", "a\0b"))
    assert state == truth
    assert state["m.room.member", user] == member.event_id
    assert state["m.room.topic", ""] == topic.event_id
    assert odd_key.event_id in given_up(ours, room)


@pytest.mark.parametrize("room_version", ["1", "5"])
async def test_floats_in_versions_that_allow_them(
    room_version: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room(room_version, members=10)
    large = room.send_state("org.example.large", {"n": 2**60})
    joined = await ours_on_sqlite.join(room)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert ours_on_sqlite.current_state(room)["org.example.large", ""] == large.event_id


async def test_received_events_that_are_bad_are_refused(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """While the room is partial: dropped, redacted and rejected are told apart here too."""
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    good = room.message("Good")
    unsigned = room.message("Unsigned", signers=[])
    outsider = f"@outsider:{simulated.server_names[1]}"
    forbidden = room.set_topic(
        "Forbidden", sender=outsider, rejected=True, prev_events=[good.event_id]
    )
    changed = room.message("Secret", prev_events=[good.event_id])
    pdu = room.pdu(changed.event_id)
    pdu["content"] = {"body": "Changed on the way"}
    async with ours.worker() as worker:
        texts = [good.text, unsigned.text, forbidden.text, json.dumps(pdu)]
        received = await worker.receiver.receive(
            room.room_id, [RawPdu(json.loads(text), text) for text in texts]
        )
    assert set(received.stored) == {good.event_id, forbidden.event_id, changed.event_id}
    assert received.rejected.keys() == {forbidden.event_id}
    assert len(received.refused) == 1

    await ours.resync()

    assert ours.partial_rows() == []
    assert ours.rejected(room) == {forbidden.event_id}
    stored = dict(ours.query("SELECT event_id, json FROM event_json"))
    assert unsigned.event_id not in stored
    assert json.loads(stored[changed.event_id])["content"] == {}
    announced = (joined.join_event_id, *received.stored)
    assert ours.announced_events() == dict.fromkeys(announced, False)
    assert ("m.room.member", ALICE) in ours.current_state(room)
