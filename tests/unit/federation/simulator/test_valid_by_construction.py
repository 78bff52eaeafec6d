"""The builder knows no authorisation rules and no state resolution: here both look at its work."""

from __future__ import annotations

import pytest

from federation.room_versions import ROOM_VERSIONS
from federation.simulator import Identities, RoomBuilder, fork_and_merge, long_history, populate
from resync.auth import check_auth_events, check_auth_rules
from resync.state import resolve

CREATOR = "@creator:resident.test"


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_every_event_is_authorised_and_every_merge_is_the_resolution(version):
    room = RoomBuilder(version, CREATOR, Identities(5), seed=5)
    users = populate(room, 60, ["resident.test", "gone.invalid"], seed=7)
    joined = [user for user in users if room.membership(user) == "join"]
    long_history(room, joined[:3], 2)
    for start in range(3, 15, 4):
        fork_and_merge(room, [joined[start : start + 2], joined[start + 2 : start + 4]])
    room.ban(joined[0])

    events = {event_id: room.event(event_id) for event_id in room.events}
    merges = 0
    for event_id, event in events.items():
        before = room.state_before(event_id)
        auth_state = {key: events[state_id] for key, state_id in before.items()}
        check_auth_rules(event, auth_state)
        check_auth_events(event, {name: events[name] for name in event.auth_event_ids}, ())
        if len(event.prev_event_ids) > 1:
            merges += 1
            forks = [room.state_after(prev_id) for prev_id in event.prev_event_ids]
            assert resolve(version, forks, events) == before
    assert merges == 3
