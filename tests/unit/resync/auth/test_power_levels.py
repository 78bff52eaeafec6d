"""The rules on `m.room.power_levels`: rule 10, in versions 6 to 11 rule 9.

Tests are named after version 12's numbers; `rule` translates.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.resync.auth.room import ALICE, BOB, CAROL, CREATOR, Room, later_rule, versions

ALL = versions(1)
NAMED = ("users_default", "events_default", "state_default", "ban", "redact", "kick", "invite")


def rule(room_version: str, part: str) -> str:
    """A part of rule 10, given as in version 12.

    10.4 is version 12's own, 10.1 and 10.2 exist from version 10 on.
    """
    version = int(room_version)
    number, _, below = part.partition(".")
    position = int(number)
    if version < 12 and position > 4:
        position -= 1
    if version < 10:
        position -= 2
    found = f"{later_rule(room_version, 10)}.{position}"
    return f"{found}.{below}" if below else found


def room_with(room_version: str, **content: Any) -> Room:
    """A room with power levels where alice has 50; she may change them."""
    room = Room(room_version)
    for user in (ALICE, BOB):
        room.member(user, "join")
    users = {ALICE: 50, **content.pop("users", {})}
    room.power_levels(users, **{"state_default": 50, **content})
    return room


def verdict(room: Room, sender: str = ALICE, **changes: Any) -> str:
    """The verdict on the current power levels with changes; ... removes a property."""
    content = {**room.state["m.room.power_levels", ""].content, **changes}
    content = {name: value for name, value in content.items() if value is not ...}
    return room.verdict_on(sender, "m.room.power_levels", content, "")


def with_users(room: Room, **changes: Any) -> dict[str, Any]:
    users = dict(room.state["m.room.power_levels", ""].content["users"])
    for name, level in changes.items():
        user = {"alice": ALICE, "bob": BOB, "carol": CAROL, "creator": CREATOR}[name]
        users[user] = level
        if level is ...:
            del users[user]
    return {"users": users}


@pytest.mark.parametrize("room_version", ALL)
def test_no_change_is_allowed(room_version: str) -> None:
    assert verdict(room_with(room_version)) == ""


@pytest.mark.parametrize("room_version", versions(10))
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("value", ["50", 50.0, None, True, [], {}])
def test_10_1_properties_are_integers(room_version: str, name: str, value: Any) -> None:
    assert verdict(room_with(room_version), **{name: value}) == rule(room_version, "1")


@pytest.mark.parametrize("room_version", versions(10))
@pytest.mark.parametrize("name", ["events", "notifications"])
@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {"m.room.topic": "50"}, {"room": None}, {"room": False}]
)
def test_10_2_events_and_notifications_hold_integers(
    room_version: str, name: str, value: Any
) -> None:
    assert verdict(room_with(room_version), **{name: value}) == rule(room_version, "2")


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("first", [True, False])
def test_10_3_users(room_version: str, first: bool) -> None:
    room = room_with(room_version)
    if first:
        del room.state["m.room.power_levels", ""]
    rejected = rule(room_version, "3")
    for users in (None, 1, "x", [], {"alice": 1}, {"@alice": 1}, {"alice:a.example": 1}, {"": 1}):
        event = room.event(CREATOR, "m.room.power_levels", {"users": users}, "")
        assert room.verdict(event) == rejected
    for level in (None, True, [], {}, "", "x", "1.5", "0x10", "1_0", "٣", "- 1", "+", 1e400):
        event = room.event(CREATOR, "m.room.power_levels", {"users": {BOB: level}}, "")
        assert room.verdict(event) == rejected


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("level", ["0", "+0", "-0", " 00\n"])
def test_10_3_levels_as_strings_before_version_10(room_version: str, level: str) -> None:
    expected = "" if int(room_version) < 10 else rule(room_version, "3")
    room = room_with(room_version)
    assert verdict(room, **with_users(room, bob=level)) == expected


@pytest.mark.parametrize("room_version", ALL)
def test_10_3_levels_as_floats_before_version_6(room_version: str) -> None:
    room = room_with(room_version)
    expected = "" if int(room_version) < 6 else rule(room_version, "3")
    assert verdict(room, **with_users(room, bob=50.99)) == expected
    assert verdict(room, **with_users(room, bob=51.0)) != ""


@pytest.mark.parametrize("user", [CREATOR, BOB])
def test_10_4_creators_are_not_listed(user: str) -> None:
    room = Room("12", {"additional_creators": [BOB]})
    for content in ({"users": {user: 100}}, {"users": {user: 0, ALICE: 1}}):
        assert room.verdict_on(CREATOR, "m.room.power_levels", content, "") == "10.4"
    assert room.verdict_on(CREATOR, "m.room.power_levels", {"users": {ALICE: 1}}, "") == ""


@pytest.mark.parametrize("room_version", ALL)
def test_10_5_the_first_power_levels(room_version: str) -> None:
    room = Room(room_version)
    content = {"users": {ALICE: 1000}, "ban": 1000, "events": {"m.room.topic": 1000}}
    assert room.verdict_on(CREATOR, "m.room.power_levels", content, "") == ""


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("name", NAMED)
def test_10_6_properties(room_version: str, name: str) -> None:
    low, high = room_with(room_version, **{name: 50}), room_with(room_version, **{name: 51})
    without = room_with(room_version)
    current, new = rule(room_version, "6.1"), rule(room_version, "6.2")
    # Changed, removed, added; up to one's own level and beyond it.
    assert verdict(low, **{name: 49}) == ""
    assert verdict(low, **{name: ...}) == ""
    assert verdict(low, **{name: 51}) == new
    assert verdict(without, **{name: 50}) == ""
    assert verdict(without, **{name: 51}) == new
    if name != "state_default":  # alice could not send power levels at all
        assert verdict(high, **{name: 49}) == current
        assert verdict(high, **{name: ...}) == current
        assert verdict(high, **{name: 51}) == ""


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize(("name", "since"), [("events", 1), ("notifications", 6)])
def test_10_7_and_10_8_entries(room_version: str, name: str, since: int) -> None:
    room = room_with(room_version, **{name: {"low": 50, "high": 51}})
    checked = int(room_version) >= since
    current = rule(room_version, "7") if checked else ""
    new = rule(room_version, "8") if checked else ""
    for entries, expected in (
        ({"low": 49, "high": 51}, ""),
        ({"high": 51}, ""),
        ({"low": 50, "high": 51, "added": 50}, ""),
        ({"low": 50, "high": 50}, current),
        ({"low": 50}, current),
        ({"low": 51, "high": 51}, new),
        ({"low": 50, "high": 51, "added": 51}, new),
    ):
        assert verdict(room, **{name: entries}) == expected
    assert verdict(room, **{name: ...}) == current


@pytest.mark.parametrize("room_version", ALL)
def test_10_9_users_who_are_not_below(room_version: str) -> None:
    room = room_with(room_version, users={BOB: 50, CAROL: 49})
    current = rule(room_version, "9")
    assert verdict(room, **with_users(room, bob=0)) == current
    assert verdict(room, **with_users(room, bob=...)) == current
    assert verdict(room, **with_users(room, carol=0)) == ""
    assert verdict(room, **with_users(room, carol=...)) == ""
    # Ones own entry may go down, never up.
    assert verdict(room, **with_users(room, alice=0)) == ""
    assert verdict(room, **with_users(room, alice=...)) == ""
    assert verdict(room, **with_users(room, alice=51)) == rule(room_version, "10")


@pytest.mark.parametrize("room_version", ALL)
def test_10_10_nobody_is_raised_above_the_sender(room_version: str) -> None:
    room = room_with(room_version, users={CAROL: 49})
    new = rule(room_version, "10")
    assert verdict(room, **with_users(room, carol=50)) == ""
    assert verdict(room, **with_users(room, bob=50)) == ""
    assert verdict(room, **with_users(room, carol=51)) == new
    assert verdict(room, **with_users(room, bob=51)) == new


@pytest.mark.parametrize("room_version", versions(1, 9))
def test_the_same_level_written_otherwise_is_no_change(room_version: str) -> None:
    room = room_with(room_version, users={BOB: 50}, ban=100)
    assert verdict(room, **with_users(room, bob=" +050 "), ban="100") == ""


@pytest.mark.parametrize("room_version", versions(1, 9))
@pytest.mark.parametrize("value", ["x", None, [], {}, True])
def test_a_new_level_that_cannot_be_read(room_version: str, value: Any) -> None:
    room = room_with(room_version)
    assert verdict(room, kick=value) != ""
    assert verdict(room, events={"m.room.topic": value}) != ""
    assert verdict(room, events=value if value != {} else 1) != ""


@pytest.mark.parametrize("room_version", ALL)
def test_the_creator_of_version_12_may_change_everything(room_version: str) -> None:
    room = room_with(room_version, users={BOB: 1000}, ban=1000, events={"x": 1000})
    expected = "" if room_version == "12" else rule(room_version, "6.1")
    assert verdict(room, CREATOR, users={}, ban=5000, events={}) == expected


@pytest.mark.parametrize("room_version", ALL)
def test_power_levels_need_the_required_level_first(room_version: str) -> None:
    assert verdict(room_with(room_version), BOB) == later_rule(room_version, 8)
