"""Rule 2 (version 12: rules 2 and 3): the event's own `auth_events`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from federation.events import Event
from federation.room_versions import EventFormat
from resync.auth import NotAuthorised, check_auth_events, select_auth_events
from tests.unit.resync.auth.room import ALICE, BOB, CREATOR, Room, versions

ALL = versions(1)


def rule(room_version: str, part: int) -> str:
    return f"{3 if room_version == '12' else 2}.{part}"


class AuthRoom(Room):
    """A room with the usual state, and a message with the right auth events to spoil."""

    def __init__(self, room_version: str) -> None:
        super().__init__(room_version)
        self.power_levels()
        self.join_rule("public")
        self.member(BOB, "join")
        self.known = {event.event_id: event for event in self.state.values()}
        state = {key: event.event_id for key, event in self.state.items()}
        pdu = {"type": "m.room.message", "sender": BOB, "content": {}}
        self.right = select_auth_events(self.version, pdu, state)

    def check(self, auth_event_ids: Iterable[str], rejected: Iterable[str] = ()) -> str:
        event = self.event(BOB, "m.room.message", {}, auth_events=tuple(auth_event_ids))
        try:
            check_auth_events(event, self.known, set(rejected))
        except NotAuthorised as error:
            return error.rule
        return ""

    def know(self, event: Event) -> str:
        self.known[event.event_id] = event
        return event.event_id


@pytest.mark.parametrize("room_version", ALL)
def test_the_selection_is_allowed_in_any_order(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.check(room.right) == ""
    assert room.check(reversed(room.right)) == ""


@pytest.mark.parametrize("room_version", ALL)
def test_part_of_the_selection_is_allowed(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.check(i for i in room.right if room.known[i].type != "m.room.power_levels") == ""


@pytest.mark.parametrize("room_version", ALL)
def test_2_1_two_events_for_one_key(room_version: str) -> None:
    room = AuthRoom(room_version)
    second = room.know(room.event(BOB, "m.room.member", {"membership": "join", "n": 2}, BOB))
    assert room.check([*room.right, second]) == rule(room_version, 1)


@pytest.mark.parametrize("room_version", ALL)
def test_2_1_the_same_event_twice(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.check([*room.right, room.right[0]]) == rule(room_version, 1)


@pytest.mark.parametrize("room_version", ALL)
def test_2_2_an_event_that_is_not_selected(room_version: str) -> None:
    room = AuthRoom(room_version)
    others = [
        room.state["m.room.join_rules", ""].event_id,
        room.state["m.room.member", CREATOR].event_id,
        room.know(room.event(BOB, "m.room.topic", {}, "")),
        room.know(room.event(BOB, "m.room.message", {})),
        room.know(room.event(CREATOR, "m.room.power_levels", {}, "key")),
    ]
    for other in others:
        assert room.check([*room.right, other]) == rule(room_version, 2)


@pytest.mark.parametrize("room_version", ALL)
def test_2_3_a_rejected_auth_event(room_version: str) -> None:
    room = AuthRoom(room_version)
    for event_id in room.right:
        assert room.check(room.right, rejected=[event_id]) == rule(room_version, 3)


@pytest.mark.parametrize("room_version", versions(1, 11))
def test_2_4_no_create_event(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.check(i for i in room.right if i != room.create.event_id) == "2.4"
    assert room.check([]) == "2.4"


def test_3_2_version_12_never_names_the_create_event() -> None:
    room = AuthRoom("12")
    assert room.create.event_id not in room.right
    assert room.check([*room.right, room.create.event_id]) == "3.2"


@pytest.mark.parametrize("room_version", ALL)
def test_2_5_an_auth_event_of_another_room(room_version: str) -> None:
    room = AuthRoom(room_version)
    foreign = room.know(
        room.event(BOB, "m.room.member", {"membership": "join"}, BOB, room_id="!other:a.example")
    )
    own = room.state["m.room.member", BOB].event_id
    last = 4 if room_version == "12" else 5
    assert room.check([foreign if i == own else i for i in room.right]) == rule(room_version, last)


@pytest.mark.parametrize("room_version", ALL)
def test_an_unknown_auth_event(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.check([*room.right, "$unknown:a.example"]) == rule(room_version, 0)[:1]


def test_2_version_12_the_room_id_is_that_of_an_accepted_create_event() -> None:
    room = AuthRoom("12")
    assert room.check(room.right, rejected=[room.create.event_id]) == "2"
    room.room_id = "!" + room.state["m.room.member", BOB].event_id[1:]
    assert room.check([]) == "2"


@pytest.mark.parametrize("room_version", ALL)
def test_create_events_have_no_auth_events_to_check(room_version: str) -> None:
    check_auth_events(Room(room_version).create, {}, ())


@pytest.mark.parametrize("room_version", versions(1, 2))
def test_versions_1_and_2_name_auth_events_in_pairs(room_version: str) -> None:
    room = AuthRoom(room_version)
    assert room.version.event_format is EventFormat.V1
    event = room.event(ALICE, "m.room.message", {}, auth_events=tuple(room.right))
    assert event.pdu["auth_events"][0] == [room.right[0], {}]
    assert room.check(room.right) == ""
