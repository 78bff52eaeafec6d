"""The rules that are not about one type of event, and those on aliases and redactions."""

from __future__ import annotations

from typing import Any

import pytest

from federation.events import Event
from resync.auth import NotAuthorised, check_auth_rules
from tests.unit.resync.auth.room import ALICE, BOB, CREATOR, Room, later_rule, versions

ALL = versions(1)


def room_with(room_version: str, create_content: dict[str, Any] | None = None) -> Room:
    room = Room(room_version, create_content)
    for user in (ALICE, BOB):
        room.member(user, "join")
    return room


@pytest.mark.parametrize("room_version", ALL)
def test_a_room_without_create_event_allows_nothing(room_version: str) -> None:
    room = room_with(room_version)
    del room.state["m.room.create", ""]
    assert room.verdict_on(CREATOR, "m.room.message", {}) == ("2" if room_version == "12" else "3")


def test_2_version_12_the_create_event_is_that_of_the_room() -> None:
    room = room_with("12")
    room.room_id = "!other"
    assert room.verdict_on(CREATOR, "m.room.message", {}) == "2"


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("federate", [False, None, "false", 0, True, ...])
def test_4_closed_rooms(room_version: str, federate: Any) -> None:
    content = {} if federate is ... else {"m.federate": federate}
    room = room_with(room_version, content)
    expected = "" if federate in (True, ...) else ("4" if room_version == "12" else "3")
    assert room.verdict_on(BOB, "m.room.message", {}) == expected
    assert room.verdict_on_member(BOB, BOB, "leave") == expected
    assert room.verdict_on(ALICE, "m.room.message", {}) == ""


class TestAliases:
    @pytest.mark.parametrize("room_version", versions(1, 5))
    def test_4_1_no_state_key(self, room_version: str) -> None:
        assert room_with(room_version).verdict_on(ALICE, "m.room.aliases", {}) == "4.1"

    @pytest.mark.parametrize("room_version", versions(1, 5))
    @pytest.mark.parametrize("state_key", ["", "b.example", "a.example:1", "A.example"])
    def test_4_2_another_server(self, room_version: str, state_key: str) -> None:
        room = room_with(room_version)
        assert room.verdict_on(ALICE, "m.room.aliases", {}, state_key) == "4.2"

    @pytest.mark.parametrize("room_version", versions(1, 5))
    def test_4_3_whoever_the_sender_is(self, room_version: str) -> None:
        room = Room(room_version)
        assert room.verdict_on("@stranger:b.example", "m.room.aliases", {}, "b.example") == ""

    @pytest.mark.parametrize("room_version", versions(6))
    def test_they_are_like_other_state_from_version_6_on(self, room_version: str) -> None:
        room = room_with(room_version)
        found = room.verdict_on(ALICE, "m.room.aliases", {}, "a.example")
        assert found == later_rule(room_version, 8)
        assert room.verdict_on(CREATOR, "m.room.aliases", {}, "b.example") == ""


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", [None, "invite", "leave", "ban", "knock"])
def test_6_the_sender_is_not_joined(room_version: str, membership: str | None) -> None:
    room = Room(room_version)
    if membership is not None:
        room.member(ALICE, membership)
    expected = later_rule(room_version, 6)
    for event_type in ("m.room.message", "m.room.third_party_invite", "m.room.power_levels"):
        assert room.verdict_on(ALICE, event_type, {}, "") == expected


@pytest.mark.parametrize("room_version", ALL)
def test_7_third_party_invites_take_the_invite_level(room_version: str) -> None:
    room = room_with(room_version)
    # Rules 8 and 9 do not apply to them.
    room.power_levels({ALICE: 10}, invite=10, events={"m.room.third_party_invite": 99})
    assert room.verdict_on(ALICE, "m.room.third_party_invite", {}, "@x:y") == ""
    room.power_levels({ALICE: 10}, invite=11)
    expected = later_rule(room_version, 7) + ".1"
    assert room.verdict_on(ALICE, "m.room.third_party_invite", {}, "token") == expected


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize(
    ("content", "state_level", "message_level"),
    [
        ({}, 50, 0),
        ({"state_default": 10}, 10, 0),
        ({"events_default": 10}, 50, 10),
        ({"events": {"org.example": 30}, "state_default": 80, "events_default": 80}, 30, 30),
        ({"events": {"other": 30}}, 50, 0),
    ],
)
def test_8_the_required_level(
    room_version: str, content: dict[str, Any], state_level: int, message_level: int
) -> None:
    room = room_with(room_version)
    rejected = later_rule(room_version, 8)
    for state_key, level in (("", state_level), (None, message_level)):
        room.power_levels({ALICE: level}, **content)
        assert room.verdict_on(ALICE, "org.example", {}, state_key) == ""
        room.power_levels({ALICE: level - 1}, **content)
        assert room.verdict_on(ALICE, "org.example", {}, state_key) == rejected
        room.power_levels(users_default=level, **content)
        assert room.verdict_on(ALICE, "org.example", {}, state_key) == ""


@pytest.mark.parametrize("room_version", ALL)
def test_8_without_power_levels_the_creator_has_100_and_state_takes_50(room_version: str) -> None:
    room = room_with(room_version)
    assert room.verdict_on(CREATOR, "m.room.topic", {}, "") == ""
    assert room.verdict_on(ALICE, "m.room.topic", {}, "") == later_rule(room_version, 8)
    assert room.verdict_on(ALICE, "m.room.message", {}) == ""


@pytest.mark.parametrize("room_version", versions(1, 9))
@pytest.mark.parametrize("level", ["30", " +030 ", "30.0"])
def test_8_levels_as_strings(room_version: str, level: str) -> None:
    room = room_with(room_version)
    room.power_levels({ALICE: 30, BOB: 29}, state_default=level)
    # What cannot be read rejects: "30.0" is no integer.
    unreadable = later_rule(room_version, 10)
    assert room.verdict_on(ALICE, "m.room.topic", {}, "") == (
        "" if "." not in level else unreadable
    )
    assert room.verdict_on(BOB, "m.room.topic", {}, "") == (
        later_rule(room_version, 8) if "." not in level else unreadable
    )


@pytest.mark.parametrize("room_version", ALL)
def test_9_state_keys_that_are_user_ids(room_version: str) -> None:
    room = room_with(room_version)
    room.power_levels({ALICE: 50})
    rejected = later_rule(room_version, 9)
    assert room.verdict_on(ALICE, "org.example", {}, ALICE) == ""
    assert room.verdict_on(ALICE, "org.example", {}, BOB) == rejected
    assert room.verdict_on(ALICE, "org.example", {}, "@") == rejected
    assert room.verdict_on(ALICE, "org.example", {}, "x@") == ""


class TestRedaction:
    def redaction(self, room: Room, sender: str, redacts: Any) -> Event:
        return room.event(sender, "m.room.redaction", {}, redacts=redacts)

    @pytest.mark.parametrize("room_version", versions(1, 2))
    @pytest.mark.parametrize("redacts", ["$1:b.example", "$1", "", None, 1, [], "$1:a.example:8"])
    def test_11_versions_1_and_2(self, room_version: str, redacts: Any) -> None:
        room = room_with(room_version)
        room.power_levels({ALICE: 50, CREATOR: 100})
        # 11.1 by level
        assert room.verdict(self.redaction(room, ALICE, redacts)) == ""
        # 11.2 by the event's domain, 11.3
        room.power_levels({ALICE: 49})
        assert room.verdict(self.redaction(room, ALICE, redacts)) == "11.3"
        assert room.verdict(self.redaction(room, ALICE, "$1:a.example")) == ""
        room.power_levels({ALICE: 49}, redact=49)
        assert room.verdict(self.redaction(room, ALICE, redacts)) == ""

    @pytest.mark.parametrize("room_version", versions(3))
    def test_redactions_are_like_other_events_from_version_3_on(self, room_version: str) -> None:
        room = room_with(room_version)
        room.power_levels({ALICE: 0}, redact=100)
        assert room.verdict(self.redaction(room, ALICE, "$1:b.example")) == ""
        room.power_levels({ALICE: 0}, events={"m.room.redaction": 1})
        found = room.verdict(self.redaction(room, ALICE, "$1:b.example"))
        assert found == later_rule(room_version, 8)


def test_the_error_names_the_rule_and_the_reason() -> None:
    room = room_with("10")
    with pytest.raises(NotAuthorised) as raised:
        check_auth_rules(room.event(ALICE, "m.room.topic", {}, ""), room.state)
    assert raised.value.rule == "7"
    assert raised.value.reason == f"{ALICE} may not send m.room.topic"
    assert str(raised.value) == f"authorisation rule 7: {ALICE} may not send m.room.topic"
