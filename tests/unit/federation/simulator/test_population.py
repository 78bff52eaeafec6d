from __future__ import annotations

from collections import Counter

import pytest

from federation.simulator import (
    ALL_JOINED,
    Identities,
    Mix,
    RoomBuilder,
    fork_and_merge,
    long_history,
    populate,
)

CREATOR = "@creator:a.test"
SERVERS = ["a.test", "b.test", "c.test"]


@pytest.fixture
def room():
    return RoomBuilder("10", CREATOR, Identities(1))


def memberships(room):
    events = (room.events[event_id] for event_id in room.current_state().values())
    return Counter(event.membership for event in events if event.membership)


def test_all_joined_is_one_event_each(room):
    before = len(room.events)
    users = populate(room, 50, SERVERS, mix=ALL_JOINED)
    assert len(set(users)) == 50
    assert len(room.events) == before + 50
    assert memberships(room) == {"join": 51}
    assert room.joined_servers(room.current_state().values()) == SERVERS


def test_shares_become_memberships_and_histories(room):
    mix = Mix(
        left=0.2, kicked=0.1, invited=0.1, banned=0.1, renamed=0.5, returned=0.5,
        moderators=0.3, messages=0.5,
    )  # fmt: skip
    users = populate(room, 400, SERVERS, mix=mix, seed=1)
    found = memberships(room)
    assert sum(found.values()) == 401
    # Far from the expected 120, 40, 40 and 200, so that no seed fails by chance.
    assert 70 < found["leave"] < 170
    assert 15 < found["invite"] < 80
    assert 15 < found["ban"] < 80
    assert found["join"] > 120
    levels = room.content_of(("m.room.power_levels", ""))["users"]
    assert 10 < sum(level == 50 for level in levels.values()) < 150
    history = Counter(event.state_key for event in room.events.values() if event.membership)
    assert max(history[user] for user in users) >= 4
    assert any(event.type == "m.room.message" for event in room.events.values())


def test_a_long_history_leaves_chains_of_replaced_events(room):
    users = populate(room, 3, SERVERS, mix=ALL_JOINED)
    long_history(room, users, 20)
    for user in users:
        length, event = 0, room.state_event(("m.room.member", user))
        while event is not None:
            length += 1
            event = room.events.get(event.replaces)
        assert length == 21
    state = room.current_state().values()
    assert len(room.auth_chain(state)) > 3 * 20


def test_forks_are_merged_and_keep_every_change(room):
    users = populate(room, 6, SERVERS, mix=ALL_JOINED)
    merge = fork_and_merge(room, [users[:3], users[3:]], messages=2)
    assert len(merge.prev_event_ids) == 2
    assert list(room.forward_extremities) == [merge.event_id]
    for number, user in enumerate(users):
        content = room.content_of(("m.room.member", user))
        assert content["displayname"] == f"On branch {number // 3}"
