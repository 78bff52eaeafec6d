import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resync.auth import NotAuthorised, auth_types_for_event
from resync.auth.rules import check_state_dependent_rules
from resync.spark.components import connected_components, keys_read, spread, spread_sizes
from resync.state.v2 import is_power_event
from tests.histories import ALL_VERSIONS, make_event, random_history


def member(user, number, *, sender=None, **content):
    return make_event(
        "10",
        "!room:example.org",
        sender or user,
        "m.room.member",
        {"membership": "join", **content},
        state_key=user,
        depth=number,
    )


def shape(components):
    return [sorted(event.depth for event in component) for component in components]


def test_users_who_name_nobody_else_are_alone():
    events = [member(f"@u{n}:x.org", n) for n in range(3)] + [member("@u1:x.org", 3)]
    assert shape(connected_components(events)) == [[1, 3], [0], [2]]


def test_an_invite_connects_if_the_inviter_may_change_too():
    invite = member("@new:x.org", 1, sender="@host:x.org", membership="invite")
    assert shape(connected_components([invite, member("@host:x.org", 2)])) == [[1, 2]]


def test_invites_of_one_user_whose_membership_is_settled_are_apart():
    invites = [
        member(f"@u{n}:x.org", n, sender="@host:x.org", membership="invite") for n in range(3)
    ]
    assert shape(connected_components(invites)) == [[0], [1], [2]]


def test_a_restricted_join_is_connected_to_who_authorised_it():
    join = member("@new:x.org", 1, join_authorised_via_users_server="@host:x.org")
    assert shape(connected_components([join, member("@host:x.org", 2)])) == [[1, 2]]


def test_connections_are_transitive_and_their_chain_may_be_long():
    users = [f"@u{n}:x.org" for n in range(5_000)]
    events = [
        member(user, n, sender=users[n - 1], membership="invite") for n, user in enumerate(users)
    ]
    assert len(connected_components(events)) == 1


class Recorder:
    """An auth state that notes what is asked of it."""

    def __init__(self, entries):
        self.entries = entries
        self.asked = set()

    def get(self, key):
        self.asked.add(tuple(key))
        return self.entries.get(key)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ALL_VERSIONS), st.integers(0, 10**6))
def test_no_check_reads_what_another_component_may_set(room_version, seed):
    rng = random.Random(seed)
    history = random_history(room_version, seed, length=50)
    events = [e for e in history.events.values() if e.is_state and not is_power_event(e)]
    components = connected_components(events)
    assert sorted(e.event_id for c in components for e in c) == sorted(e.event_id for e in events)
    set_by = {}
    for number, component in enumerate(components):
        for event in component:
            assert set_by.setdefault(event.key, number) == number
    for number, component in enumerate(components):
        for event in component:
            ids = history.state_after[rng.choice(list(history.state_after))]
            state = Recorder({key: history.events[i] for key, i in ids.items()})
            with contextlib.suppress(NotAuthorised):
                check_state_dependent_rules(event, state)
            assert all(set_by.get(key, number) == number for key in state.asked)
            assert state.asked <= keys_read([event])


def test_one_giant_component_has_a_bin_to_itself():
    giant = [member("@giant:x.org", n) for n in range(100)]
    small = [member(f"@u{n}:x.org", n) for n in range(99)]
    bins = spread(connected_components(giant + small), 4)
    assert sorted(map(len, bins)) == [33, 33, 33, 100]
    assert {event.state_key for event in max(bins, key=len)} == {"@giant:x.org"}


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 8))
def test_everything_is_placed_once_and_no_bin_is_far_above_the_others(sizes, bins):
    placed = spread_sizes(sizes, bins)
    assert sorted(p for one in placed for p in one) == list(range(len(sizes)))
    assert len(placed) == min(bins, len(sizes))
    totals = [sum(sizes[p] for p in one) for one in placed]
    if totals:
        assert max(totals) - min(totals) <= max(sizes)


@pytest.mark.parametrize("room_version", ALL_VERSIONS)
def test_what_is_read_includes_the_auth_events_selection(room_version):
    for event in random_history(room_version, 1, length=30).events.values():
        assert auth_types_for_event(event) <= keys_read([event])
