"""State resolution of room version 1, from the text of its page."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import pytest

from resync.state import resolve
from tests.unit.resync.state.branches import (
    ALICE,
    BOB,
    CAROL,
    CREATE,
    CREATOR,
    JOIN_RULES,
    POWER_LEVELS,
    TOPIC,
    Branch,
    member,
    new_room,
)


def merge(*branches: Branch, rejected: Collection[str] = ()) -> dict[tuple[str, str], str]:
    states = [branch.state for branch in branches]
    found = resolve("1", states, branches[0].events, rejected=rejected)
    assert found == resolve("1", states[::-1], branches[0].events, rejected=rejected)
    return found


def by_sha1(*event_ids: str) -> list[str]:
    """The ids, the one with the lowest hash first."""
    return sorted(event_ids, key=lambda event_id: hashlib.sha1(event_id.encode()).digest())


def test_a_state_that_lacks_an_entry_is_no_conflict() -> None:
    left = new_room("1", power_levels={})
    right = left.fork()
    topic = left.topic(CREATOR)
    # Nothing is checked: this one is not even known.
    right.state["org.example", ""] = "$unknown"
    assert merge(left, right) == {**right.state, TOPIC: topic}


def test_other_state_goes_to_the_highest_depth_that_passes() -> None:
    left = new_room("1", power_levels={ALICE: 50})
    left.membership(ALICE, "join")
    left.membership(BOB, "join")
    right, third = left.fork(), left.fork()
    left.topic(ALICE, depth=100)
    second = right.topic(ALICE, depth=101)
    third.topic(BOB, depth=102)
    assert merge(left, right, third)[TOPIC] == second


@pytest.mark.parametrize("ids", [("$a", "$b"), ("$x:example", "$y:example"), ("$é", "$ü")])
def test_and_then_to_the_lowest_sha1(ids: tuple[str, str]) -> None:
    left = new_room("1", power_levels={})
    right = left.fork()
    left.topic(CREATOR, depth=100, event_id=ids[0])
    right.topic(CREATOR, depth=100, event_id=ids[1])
    assert merge(left, right)[TOPIC] == by_sha1(*ids)[0]


def test_when_none_passes_the_lowest_depth_and_highest_sha1_is_left() -> None:
    left = new_room("1", power_levels={})
    left.membership(BOB, "join")
    right, third = left.fork(), left.fork()
    left.topic(BOB, depth=100, event_id="$a")
    right.topic(BOB, depth=100, event_id="$b")
    third.topic(BOB, depth=101)
    assert merge(left, right, third)[TOPIC] == by_sha1("$a", "$b")[1]


class TestPowerLevels:
    def test_ascending_depth_until_one_does_not_pass(self) -> None:
        base = new_room("1", power_levels={ALICE: 90, BOB: 80})
        for user in (ALICE, BOB):
            base.membership(user, "join")
        one, two, three, four = (base.fork() for _ in range(4))
        one.power_levels({ALICE: 90, BOB: 80}, by=CREATOR, depth=100)
        second = two.power_levels({ALICE: 90, BOB: 10}, by=ALICE, depth=101)
        three.power_levels({ALICE: 90, BOB: 80, CAROL: 1}, by=BOB, depth=102)
        four.power_levels({ALICE: 90, BOB: 10, CAROL: 1}, by=CREATOR, depth=103)
        # Bob has been demoted by the second, his does not pass: stop. The fourth is not looked at.
        assert merge(one, two, three, four)[POWER_LEVELS] == second

    def test_the_first_is_not_checked(self) -> None:
        left = new_room("1", power_levels={})
        left.membership(BOB, "join")
        right = left.fork()
        first = left.power_levels({BOB: 100}, by=BOB, depth=100)
        right.power_levels({}, by=ALICE, depth=101)
        assert merge(left, right)[POWER_LEVELS] == first

    def test_equal_depths_go_by_descending_sha1(self) -> None:
        base = new_room("1", power_levels={})
        left, right = base.fork(), base.fork()
        left.power_levels({ALICE: 1}, depth=100, event_id="$a")
        right.power_levels({ALICE: 2}, depth=100, event_id="$b")
        # Both pass, so the last of the order stays.
        assert merge(left, right)[POWER_LEVELS] == by_sha1("$a", "$b")[0]

    def test_they_decide_about_what_follows(self) -> None:
        left = new_room("1", power_levels={ALICE: 50})
        left.membership(ALICE, "join")
        topic = left.topic(CREATOR, depth=50)
        right = left.fork()
        demotion = left.power_levels({ALICE: 0}, depth=100)
        right.topic(ALICE, depth=200)
        found = merge(left, right)
        # In version 1 the other state's power levels are in conflict with the demotion.
        assert found[POWER_LEVELS] == demotion
        assert found[TOPIC] == topic


class TestJoinRulesAndMembers:
    def test_join_rules_decide_about_members(self) -> None:
        left = new_room("1", power_levels={})
        left.membership(ALICE, "invite", by=CREATOR)
        right = left.fork()
        left.join_rule("invite", depth=100)
        left.membership(ALICE, "leave", depth=101)
        right.membership(ALICE, "join", depth=102)
        found = merge(left, right)
        # Alice's leave comes first. Her join would need the invite that it took away.
        assert found[JOIN_RULES] == left.state[JOIN_RULES]
        assert found[member(ALICE)] == left.state[member(ALICE)]

    def test_members_are_judged_by_what_was_settled_before_them(self) -> None:
        """The memberships of two users, in conflict at once, do not depend on each other."""
        base = new_room("1", power_levels={ALICE: 50})
        base.membership(ALICE, "join")
        base.membership(BOB, "join")
        left, right = base.fork(), base.fork()
        left.membership(ALICE, "ban", by=CREATOR, depth=100)
        right.membership(BOB, "ban", by=ALICE, depth=101)
        found = merge(left, right)
        assert found[member(ALICE)] == left.state[member(ALICE)]
        # Alice is in conflict herself, so nothing says she is in the room: her ban does not pass.
        assert found[member(BOB)] == base.state[member(BOB)]


def test_unknown_and_rejected_events_do_not_count() -> None:
    left = new_room("1", power_levels={})
    right, third = left.fork(), left.fork()
    first = left.topic(CREATOR, depth=100)
    second = right.topic(CREATOR, depth=101)
    third.topic(CREATOR, depth=102)
    del left.events[third.state[TOPIC]]
    assert merge(left, right, third)[TOPIC] == second
    # The only one left is not checked.
    assert merge(left, right, third, rejected=[second])[TOPIC] == first
    assert TOPIC not in merge(left, right, third, rejected=[first, second])


def test_events_of_other_rooms_do_not_count() -> None:
    left = new_room("1", power_levels={})
    right = left.fork()
    own = left.topic(CREATOR, depth=100)
    right.topic(CREATOR, depth=101, room_id="!other")
    assert merge(left, right)[TOPIC] == own


def test_create_events_in_conflict_do_no_harm() -> None:
    left = new_room("1", power_levels={})
    right = left.fork()
    second = right.send(CREATOR, "m.room.create", {"creator": CREATOR}, depth=100)
    assert merge(left, right)[CREATE] == second
