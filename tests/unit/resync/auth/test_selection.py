"""Server-server API, "Auth events selection"."""

from __future__ import annotations

from typing import Any

import pytest

from resync.auth import auth_types_for_event, select_auth_events, state_needed_for_event
from tests.unit.resync.auth.room import ALICE, BOB, Room, versions

ALL = versions(1)
CREATE = ("m.room.create", "")
POWER_LEVELS = ("m.room.power_levels", "")
JOIN_RULES = ("m.room.join_rules", "")


def member(user: str) -> tuple[str, str]:
    return ("m.room.member", user)


def selected(
    room_version: str, event_type: str, content: dict[str, Any], state_key: str | None = None
) -> set[tuple[str, str]]:
    """The selection for an event of alice's without what every event has."""
    event = Room(room_version).event(ALICE, event_type, content, state_key)
    found = auth_types_for_event(event)
    assert state_needed_for_event(event) == found | {CREATE}
    assert (CREATE in found) == (room_version != "12")
    assert {POWER_LEVELS, member(ALICE)} <= found
    return set(found) - {CREATE, POWER_LEVELS, member(ALICE)}


@pytest.mark.parametrize("room_version", ALL)
def test_create_events_have_none(room_version: str) -> None:
    create = Room(room_version).create
    assert auth_types_for_event(create) == set()
    assert state_needed_for_event(create) == set()


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("event_type", ["m.room.message", "m.room.power_levels", "m.room.topic"])
def test_other_events(room_version: str, event_type: str) -> None:
    assert selected(room_version, event_type, {"membership": "join"}, "") == set()


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", ["join", "invite", "knock", "leave", "ban", None, []])
def test_membership(room_version: str, membership: Any) -> None:
    expected = {member(BOB)}
    if membership in ("join", "invite", "knock"):
        expected.add(JOIN_RULES)
    assert selected(room_version, "m.room.member", {"membership": membership}, BOB) == expected


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", ["join", "invite", "leave"])
def test_third_party_invites(room_version: str, membership: str) -> None:
    content = {"membership": membership, "third_party_invite": {"signed": {"token": "t"}}}
    token = ("m.room.third_party_invite", "t")
    found = selected(room_version, "m.room.member", content, BOB)
    assert (token in found) == (membership == "invite")


@pytest.mark.parametrize("invite", [None, [], {}, {"signed": 1}, {"signed": {"token": ["t"]}}])
def test_malformed_third_party_invites_name_nothing(invite: Any) -> None:
    content = {"membership": "invite", "third_party_invite": invite}
    assert selected("10", "m.room.member", content, BOB) == {member(BOB), JOIN_RULES}


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", ["join", "invite"])
def test_authorised_joins_from_version_8_on(room_version: str, membership: str) -> None:
    content = {"membership": membership, "join_authorised_via_users_server": BOB}
    found = selected(room_version, "m.room.member", content, ALICE)
    assert (member(BOB) in found) == (membership == "join" and int(room_version) >= 8)


@pytest.mark.parametrize("room_version", ALL)
def test_what_the_state_has_is_selected_for_a_new_event(room_version: str) -> None:
    room = Room(room_version)
    power_levels = room.power_levels()
    alice = room.member(ALICE, "join")
    room.member(BOB, "join")
    state = {key: event.event_id for key, event in room.state.items()}
    pdu = {"type": "m.room.message", "sender": ALICE, "content": {}}
    found = select_auth_events(room.version, pdu, state)
    create = [] if room_version == "12" else [room.create.event_id]
    assert sorted(found) == sorted([*create, power_levels.event_id, alice.event_id])
