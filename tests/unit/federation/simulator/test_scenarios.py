"""The scenarios do to the authorisation rules what they say."""

from __future__ import annotations

import pytest

from federation.room_versions import ROOM_VERSIONS
from federation.simulator import Identities, RoomBuilder
from federation.simulator.scenarios import accepted_wrongly, ban_moderator, rejected_wrongly
from resync.auth import NotAuthorised, check_auth_events, check_auth_rules

CREATOR = "@creator:resident.test"
MODERATOR = "@moderator:gone.invalid"
USER = "@user:gone.invalid"


def verdict(room, built, state):
    """Whether the rules accept an event, on its own auth events and on `state`."""
    event = room.event(built.event_id)
    auth_events = {event_id: room.event(event_id) for event_id in event.auth_event_ids}
    try:
        check_auth_events(event, auth_events, ())
        check_auth_rules(event, {key: room.event(state_id) for key, state_id in state.items()})
    except NotAuthorised:
        return False
    return True


def partial_state_before(room, built, *accepted):
    """The state before an event as a server without members has it.

    It lacks the members, but for those that the event's own auth events name; `accepted` are
    events it has accepted since.
    """
    before = room.state_before(built.event_id)
    state = {key: state_id for key, state_id in before.items() if key.type != "m.room.member"}
    auth_events = [room.events[event_id] for event_id in built.auth_event_ids]
    state.update({event.key: event.event_id for event in (*auth_events, *accepted)})
    return state


@pytest.fixture(params=ROOM_VERSIONS)
def room(request):
    room = RoomBuilder(request.param, CREATOR, Identities(2))
    room.join(USER)
    return room


def test_accepted_wrongly(room):
    moderator = ban_moderator(room, MODERATOR)
    topic = accepted_wrongly(room, moderator)
    assert topic.rejected
    assert verdict(room, topic, partial_state_before(room, topic))
    assert not verdict(room, topic, room.state_before(topic.event_id))


def test_rejected_wrongly(room):
    moderator = ban_moderator(room, MODERATOR)
    kick, message = rejected_wrongly(room, moderator, USER)
    assert kick.rejected
    assert not message.rejected
    assert verdict(room, kick, partial_state_before(room, kick))
    assert not verdict(room, message, partial_state_before(room, message, kick))
    assert not verdict(room, kick, room.state_before(kick.event_id))
    assert verdict(room, message, room.state_before(message.event_id))
    assert room.membership(USER) == "join"


def test_only_a_member_can_be_kicked(room):
    moderator = ban_moderator(room, MODERATOR)
    with pytest.raises(ValueError, match="not joined"):
        rejected_wrongly(room, moderator, "@stranger:gone.invalid")
