"""Whatever a stranger puts where, the outcome is a verdict: never another exception."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from federation.events import Event
from resync.auth import (
    NotAuthorised,
    auth_types_for_event,
    check_auth_events,
    check_auth_rules,
    select_auth_events,
    state_needed_for_event,
)
from tests.strategies.rooms import json_values, room_versions
from tests.unit.resync.auth.room import ALICE, CREATOR, Room

TYPES = (
    "m.room.create",
    "m.room.member",
    "m.room.join_rules",
    "m.room.power_levels",
    "m.room.third_party_invite",
    "m.room.aliases",
    "m.room.redaction",
    "org.example",
)
FIELDS = (
    *("membership", "third_party_invite", "join_authorised_via_users_server", "join_rule"),
    *("users", "events", "notifications", "users_default", "state_default", "ban", "invite"),
    *("creator", "additional_creators", "m.federate", "room_version"),
    *("public_key", "public_keys", "signed"),
)
contents = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5)
member_contents = st.fixed_dictionaries(
    {"membership": st.sampled_from(["join", "invite", "leave", "ban", "knock"])},
    optional={
        "third_party_invite": json_values
        | st.fixed_dictionaries(
            {
                "signed": st.fixed_dictionaries(
                    {"mxid": json_values | st.just(ALICE), "token": st.just("token")},
                    optional={"signatures": json_values},
                )
            }
        ),
        "join_authorised_via_users_server": json_values,
    },
)
power_levels_contents = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("users", "events", "users_default", "ban", "kick"), json_values)
)
senders = st.sampled_from([CREATOR, ALICE, "@", "", "alice", "@bob:b.example"])
state_keys = st.sampled_from([None, "", CREATOR, ALICE, "token", "@", "a.example"])


@st.composite
def rooms_with_an_event(draw: st.DrawFn) -> tuple[Room, Event]:
    """A room with malformed state and an event with malformed content."""
    room = Room(draw(room_versions), draw(contents))
    room.member(ALICE, draw(st.sampled_from(["join", "invite", "ban"]) | json_values))
    if draw(st.booleans()):
        room.put(room.event(CREATOR, "m.room.power_levels", draw(power_levels_contents), ""))
    if draw(st.booleans()):
        room.join_rule(draw(json_values))
    if draw(st.booleans()):
        room.put(room.event(ALICE, "m.room.third_party_invite", draw(contents), "token"))
    event_type = draw(st.sampled_from(TYPES))
    content: dict[str, Any] = draw(contents)
    if event_type == "m.room.member":
        content = draw(member_contents | contents)
    if event_type == "m.room.power_levels":
        content = draw(power_levels_contents)
    event = room.event(
        draw(senders), event_type, content, draw(state_keys), redacts=draw(json_values)
    )
    return room, event


@settings(max_examples=80, deadline=None)
@given(rooms_with_an_event())
def test_the_outcome_is_a_verdict(room_and_event: tuple[Room, Event]) -> None:
    room, event = room_and_event
    found = room.verdict(event)
    assert type(found) is str
    assert found == room.verdict(event)


@settings(max_examples=40, deadline=None)
@given(rooms_with_an_event(), st.data())
def test_the_outcome_for_the_auth_events_is_a_verdict(
    room_and_event: tuple[Room, Event], data: st.DataObject
) -> None:
    room, event = room_and_event
    ids = [known.event_id for known in room.state.values()]
    chosen = data.draw(st.lists(st.sampled_from([*ids, "$unknown:a"]), max_size=6))
    event = room.event(
        event.sender, event.type, dict(event.content), event.state_key, auth_events=tuple(chosen)
    )
    known = {e.event_id: e for e in room.state.values()}
    rule = "2"
    try:
        check_auth_events(event, known, ids[2:3])
    except NotAuthorised as error:
        rule = error.rule
    assert rule[0] in "23"


@settings(max_examples=40, deadline=None)
@given(rooms_with_an_event())
def test_the_rules_look_up_nothing_but_what_they_say(room_and_event: tuple[Room, Event]) -> None:
    room, event = room_and_event
    needed = state_needed_for_event(event)
    verdict = room.verdict(event)
    room.state = {key: value for key, value in room.state.items() if key in needed}
    assert room.verdict(event) == verdict


@settings(max_examples=40, deadline=None)
@given(rooms_with_an_event())
def test_the_selection_holds_keys_and_is_what_is_selected(
    room_and_event: tuple[Room, Event],
) -> None:
    room, event = room_and_event
    selection = auth_types_for_event(event)
    assert all(type(part) is str for key in selection for part in key)
    state = {key: known.event_id for key, known in room.state.items()}
    selected = select_auth_events(room.version, event.pdu, state)
    assert selected == [state[key] for key in sorted(selection) if key in state]


def test_a_check_does_not_change_its_arguments() -> None:
    room = Room("10")
    room.power_levels({ALICE: 50})
    event = room.event(CREATOR, "m.room.power_levels", {"users": {}}, "")
    before = [dict(known.content) for known in room.state.values()]
    check_auth_rules(event, room.state)
    assert [dict(known.content) for known in room.state.values()] == before
