"""Rooms as they are built: their bytes, their shape and the state at each event."""

from __future__ import annotations

import pytest

from federation.checks import Outcome, VerifyKey, check_pdus
from federation.errors import InvalidEvent
from federation.events import Event
from federation.hashing import compute_event_id, reference_hash
from federation.room_versions import ROOM_VERSIONS, get_room_version
from federation.signing import decode_base64, generate_signing_key, sign_event
from federation.simulator import (
    ConflictingForks,
    Identities,
    RoomBuilder,
    UnknownReference,
    fork_and_merge,
    populate,
)

SERVERS = ["resident.test", "other.test:8448", "gone.invalid"]
CREATOR = "@creator:resident.test"
FAR_FUTURE = 2**53
NAME = ("m.room.name", "")
TOPIC = ("m.room.topic", "")


def build(version="10", seed=1, **how):
    return RoomBuilder(version, CREATOR, Identities(seed), seed=seed, **how)


def verify_keys(room):
    return {
        (identity.server_name, identity.key_id): VerifyKey(identity.verify_key, FAR_FUTURE)
        for identity in room.identities
    }


@pytest.fixture(params=ROOM_VERSIONS)
def eventful_room(request):
    """A room in which everything happens that the builder has a method for."""
    room = build(request.param)
    users = populate(room, 40, SERVERS, seed=3)
    joined = [user for user in users if room.membership(user) == "join"]
    room.set_power_levels({"users": {joined[0]: 50}})
    room.set_topic("A topic", sender=joined[0])
    fork_and_merge(room, [joined[1:3], joined[3:5]], messages=2)
    room.redact(room.message("Regretted").event_id)
    room.ban("@stranger:gone.invalid")
    room.kick("@stranger:gone.invalid")
    if room.version.knocking:
        room.set_join_rules("knock")
        room.knock("@knocker:other.test:8448")
        room.invite("@knocker:other.test:8448")
    if room.version.restricted_joins:
        room.set_join_rules("restricted", [{"type": "m.room_membership", "room_id": "!a:b.test"}])
        room.join(
            "@restricted:other.test:8448", content={"join_authorised_via_users_server": CREATOR}
        )
    return room


def test_every_event_passes_the_checks_on_receipt(eventful_room):
    room = eventful_room
    results = check_pdus(
        [event.text for event in room.events.values()],
        room.version.identifier,
        room.room_id,
        verify_keys(room),
    )
    assert [(result.outcome, result.event_id, result.reason) for result in results] == [
        (Outcome.ACCEPTED, event_id, "") for event_id in room.events
    ]


def test_references_are_to_earlier_events_and_depth_grows(eventful_room):
    room = eventful_room
    seen = set()
    for built in room.events.values():
        event = room.event(built.event_id)
        assert event.prev_event_ids == built.prev_event_ids
        assert event.auth_event_ids == built.auth_event_ids
        assert {*event.prev_event_ids, *event.auth_event_ids} <= seen
        depths = [room.events[event_id].depth for event_id in event.prev_event_ids]
        assert event.depth == max(depths, default=0) + 1
        seen.add(built.event_id)
    assert len(room.forward_extremities) == 1


def test_the_state_is_what_applying_the_events_gives(eventful_room):
    room = eventful_room
    for event in room.events.values():
        before = room.state_before(event.event_id)
        if len(event.prev_event_ids) == 1:
            assert before == room.state_after(event.prev_event_ids[0])
        own = {event.key: event.event_id} if event.key else {}
        assert room.state_after(event.event_id) == {**before, **own}
    assert room.current_state() == room.state_after(next(reversed(room.events)))


def test_version_1_references_carry_the_hash_of_the_event():
    room = build("1")
    version = get_room_version("1")
    message = room.pdu(room.message().event_id)
    [[event_id, hashes]] = message["prev_events"]
    assert decode_base64(hashes["sha256"]) == reference_hash(room.pdu(event_id), version)
    assert message["event_id"].endswith(":resident.test")


def test_a_version_12_room_is_named_by_its_create_event():
    room = build("12")
    create = next(iter(room.events.values()))
    assert room.room_id == "!" + create.event_id[1:]
    assert "room_id" not in room.pdu(create.event_id)
    assert all(create.event_id not in event.auth_event_ids for event in room.events.values())
    assert build("12", seed=2).room_id != room.room_id


@pytest.mark.parametrize("version", ["1", "10", "12"])
def test_the_same_seed_gives_the_same_bytes(version):
    def texts(seed):
        room = build(version, seed=seed)
        populate(room, 30, SERVERS, seed=seed)
        return [event.json for event in room.events.values()]

    assert texts(1) == texts(1)
    assert not set(texts(1)) & set(texts(2))


def test_a_fork_keeps_the_changes_of_both_branches():
    room = build()
    start = tuple(room.forward_extremities)
    named = room.set_name("Left", prev_events=start)
    described = room.set_topic("Right", prev_events=start)
    assert set(room.forward_extremities) == {named.event_id, described.event_id}
    assert NAME in room.state_after(described.event_id)
    assert room.state_after(described.event_id)[NAME] != named.event_id
    merged = room.message()
    assert set(merged.prev_event_ids) == {named.event_id, described.event_id}
    state = room.state_before(merged.event_id)
    assert (state[NAME], state[TOPIC]) == (named.event_id, described.event_id)


def test_a_fork_from_the_middle_of_another_is_no_conflict():
    room = build()
    first = room.set_name("First")
    second = room.set_name("Second")
    aside = room.message(prev_events=[first.event_id])
    merged = room.message(prev_events=[aside.event_id, second.event_id])
    assert room.state_before(merged.event_id)[NAME] == second.event_id


def test_conflicting_forks_need_the_resolved_state():
    room = build()
    start = tuple(room.forward_extremities)
    left = room.set_name("Left", prev_events=start)
    right = room.set_name("Right", prev_events=start)
    with pytest.raises(ConflictingForks, match=r"m\.room\.name"):
        room.message()
    resolved = {**room.state_before(left.event_id), NAME: right.event_id}
    merged = room.message(state_before=resolved)
    assert room.current_state() == room.state_before(merged.event_id) == resolved


def test_a_given_state_can_take_entries_away():
    room = build()
    state = room.current_state()
    del state[NAME]
    event = room.message(state_before=state)
    assert room.state_before(event.event_id) == state


def test_unknown_prev_events_need_the_state():
    room = build()
    with pytest.raises(UnknownReference, match=r"\$nowhere"):
        room.message(prev_events=["$nowhere"])
    state = room.current_state()
    event = room.message(prev_events=["$nowhere"], state_before=state)
    assert event.prev_event_ids == ("$nowhere",)
    assert room.state_after(event.event_id) == state


def test_a_rejected_event_is_there_but_changes_nothing():
    room = build()
    before = room.current_state()
    extremities = list(room.forward_extremities)
    rejected = room.set_name("Stolen", sender="@nobody:gone.invalid", rejected=True)
    assert rejected.event_id in room.events
    assert room.state_after(rejected.event_id) == before
    assert room.current_state() == before
    assert list(room.forward_extremities) == extremities


def test_auth_events_can_be_chosen():
    room = build()
    user = "@user:gone.invalid"
    joined = room.join(user)
    room.ban(user)
    create, levels = (
        room.current_state()[key] for key in (("m.room.create", ""), ("m.room.power_levels", ""))
    )
    late = room.message(sender=user, auth_events=[create, levels, joined.event_id], rejected=True)
    assert room.event(late.event_id).auth_event_ids == (create, levels, joined.event_id)


def test_the_auth_chain_is_all_that_auth_events_lead_to():
    room = build()
    user = "@user:gone.invalid"
    joined = room.join(user)
    renamed = room.rename(user, "Other name")
    chain = set(room.auth_chain([renamed.event_id]))
    assert joined.event_id in chain
    assert renamed.event_id not in chain
    pending, expected = [renamed.event_id], set()
    while pending:
        for event_id in room.events[pending.pop()].auth_event_ids:
            if event_id not in expected:
                expected.add(event_id)
                pending.append(event_id)
    assert chain == expected


def test_memberships_and_servers_follow_the_current_state():
    room = build()
    user = "@user:gone.invalid"
    room.join(user)
    assert room.joined_servers(room.current_state().values()) == ["gone.invalid", "resident.test"]
    assert [event.state_key for event in room.joined_members_of("gone.invalid")] == [user]
    room.leave(user)
    assert room.membership(user) == "leave"
    assert room.joined_servers(room.current_state().values()) == ["resident.test"]
    assert not list(room.joined_members_of("gone.invalid"))


class TestAccept:
    SERVER = "joining.test"

    def signed_join(self, room, **changes):
        pdu = room.template(
            "m.room.member",
            {"membership": "join"},
            f"@user:{self.SERVER}",
            f"@user:{self.SERVER}",
        )
        return sign_event({**pdu, **changes}, room.version, self.SERVER, generate_signing_key())

    @pytest.mark.parametrize("version", ["1", "10", "12"])
    def test_another_servers_event_enters_the_room_once(self, version):
        room = build(version)
        before = room.current_state()
        pdu = self.signed_join(room)
        join = room.accept(pdu)
        assert join.event_id == compute_event_id(pdu, room.version)
        assert room.pdu(join.event_id) == pdu
        assert room.state_before(join.event_id) == before
        assert room.membership(f"@user:{self.SERVER}") == "join"
        assert room.accept(pdu) is join
        assert join.event_id not in room.identities

    def test_a_countersigned_event_keeps_its_id(self):
        room = build("10")
        pdu = self.signed_join(room)
        join = room.accept(pdu, countersigner=room.identities.of("resident.test"))
        assert join.event_id == compute_event_id(pdu, room.version)
        assert set(room.pdu(join.event_id)["signatures"]) == {self.SERVER, "resident.test"}

    def test_an_event_of_another_room_is_refused(self):
        with pytest.raises(InvalidEvent, match="not of"):
            build(seed=1).accept(self.signed_join(build(seed=2)))

    def test_unknown_prev_events_are_refused(self):
        room = build()
        with pytest.raises(UnknownReference):
            room.accept(self.signed_join(room, prev_events=["$nowhere"]))


def test_an_event_reads_as_the_rest_of_the_project_reads_it():
    room = build("11")
    built = room.set_topic("Ünïcode ✓")
    event = room.event(built.event_id)
    assert isinstance(event, Event)
    assert Event.from_pdu(room.pdu(built.event_id), "11").event_id == built.event_id
    assert event.json == built.text
    assert event.content == {"topic": "Ünïcode ✓"}
