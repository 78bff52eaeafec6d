"""State resolution v2 and v2.1 on histories whose outcome can be told from the text."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from federation.room_versions import StateResolution
from resync.state import resolve
from resync.state.v2 import is_power_event
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

V2 = [str(number) for number in range(2, 13)]
both = pytest.mark.parametrize("room_version", V2)


def merge(*branches: Branch, rejected: Collection[str] = ()) -> dict[tuple[str, str], str]:
    """The resolution, after a look at whether the order of the branches matters."""
    version = branches[0].version.identifier
    states = [branch.state for branch in branches]
    found = resolve(version, states, branches[0].events, rejected=rejected)
    turned = resolve(version, states[::-1], branches[0].events, rejected=rejected)
    assert found == turned
    return found


def test_no_states() -> None:
    assert resolve("2", [], {}) == {}


@both
def test_the_later_of_two_ordinary_events_wins(room_version: str) -> None:
    left = new_room(room_version, power_levels={})
    right = left.fork()
    left.topic(CREATOR, ts=100)
    later = right.topic(CREATOR, ts=101)
    assert merge(left, right) == {**left.state, TOPIC: later}


@both
def test_the_greater_event_id_wins_a_tie(room_version: str) -> None:
    left = new_room(room_version, power_levels={})
    right = left.fork()
    left.topic(CREATOR, ts=100, event_id="$a")
    greater = right.topic(CREATOR, ts=100, event_id="$b")
    assert merge(left, right)[TOPIC] == greater


@both
def test_an_entry_that_one_state_lacks_is_conflicted_and_comes_back(room_version: str) -> None:
    left = new_room(room_version, power_levels={})
    right = left.fork()
    topic = left.topic(CREATOR)
    assert merge(left, right) == {**right.state, TOPIC: topic}


@both
def test_a_ban_beats_what_the_banned_does_meanwhile(room_version: str) -> None:
    left = new_room(room_version, power_levels={ALICE: 50, BOB: 50})
    for user in (ALICE, BOB):
        left.membership(user, "join")
    topic = left.topic(CREATOR)
    right = left.fork()
    ban = left.membership(BOB, "ban", by=CREATOR, ts=1000)
    right.topic(BOB, ts=2000)
    right.membership(BOB, "join", content={"displayname": "b"}, ts=2000)
    assert merge(left, right) == {**left.state, member(BOB): ban, TOPIC: topic}


@both
def test_a_demotion_beats_what_the_demoted_does_meanwhile(room_version: str) -> None:
    left = new_room(room_version, power_levels={ALICE: 50})
    left.membership(ALICE, "join")
    topic = left.topic(CREATOR)
    right = left.fork()
    demotion = left.power_levels({ALICE: 0}, ts=1000)
    right.topic(ALICE, ts=2000)
    assert merge(left, right) == {**left.state, POWER_LEVELS: demotion, TOPIC: topic}


@both
def test_a_power_event_of_the_more_powerful_goes_first(room_version: str) -> None:
    """Two who ban each other: "x's sender has greater power level than y's sender"."""
    left = new_room(room_version, power_levels={ALICE: 90, BOB: 80})
    for user in (ALICE, BOB):
        left.membership(user, "join")
    right = left.fork()
    left.power_levels({ALICE: 90, BOB: 0}, by=ALICE, ts=2000)
    right.power_levels({ALICE: 90, BOB: 80, CAROL: 80}, by=BOB, ts=1000)
    # Alice's goes first although it is later; Bob may no longer send his.
    assert merge(left, right)[POWER_LEVELS] == left.state[POWER_LEVELS]


@both
def test_a_join_under_a_rule_that_was_changed_meanwhile(room_version: str) -> None:
    left = new_room(room_version, power_levels={})
    right = left.fork()
    invite_only = left.join_rule("invite")
    right.membership(ALICE, "join")
    assert merge(left, right) == {**left.state, JOIN_RULES: invite_only}


@both
def test_mainline_ordering_comes_before_time(room_version: str) -> None:
    """What rests on later power levels is the later event, whatever its timestamp says."""
    left = new_room(room_version, power_levels={ALICE: 50})
    left.membership(ALICE, "join")
    right = left.fork()
    left.topic(ALICE, ts=9000)
    right.power_levels({ALICE: 50, BOB: 50})
    right.power_levels({ALICE: 50, BOB: 51})
    topic = right.topic(ALICE, ts=1000)
    assert merge(left, right)[TOPIC] == topic


@both
def test_three_branches(room_version: str) -> None:
    left = new_room(room_version, power_levels={ALICE: 50})
    left.membership(ALICE, "join")
    middle, right = left.fork(), left.fork()
    left.topic(ALICE)
    middle.power_levels({ALICE: 0})
    joined = right.membership(BOB, "join")
    found = merge(left, middle, right)
    assert found == {**middle.state, member(BOB): joined}


@both
def test_a_room_without_power_levels(room_version: str) -> None:
    left = new_room(room_version)
    for user in (ALICE, BOB):
        left.membership(user, "join")
    topic = left.topic(CREATOR)
    right = left.fork()
    ban = left.membership(ALICE, "ban", by=CREATOR)
    right.membership(BOB, "leave", by=CREATOR)
    right.topic(ALICE)
    found = merge(left, right)
    assert found[member(ALICE)] == ban
    assert found[member(BOB)] == right.state[member(BOB)]
    assert found[TOPIC] == topic


class TestRejectedEvents:
    @both
    def test_they_do_not_win(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        first = left.topic(CREATOR)
        second = right.topic(CREATOR)
        assert merge(left, right)[TOPIC] == second
        assert merge(left, right, rejected=[second])[TOPIC] == first
        assert TOPIC not in merge(left, right, rejected=[first, second])

    @both
    def test_they_authorise_nothing(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        joined = left.membership(ALICE, "join")
        renamed = left.membership(ALICE, "join", content={"displayname": "a"})
        left.join_rule("invite")
        # The second join of alice passes because she is a member by the first.
        assert merge(left, right)[member(ALICE)] == renamed
        assert member(ALICE) not in merge(left, right, rejected=[joined])


class TestUnknownEvents:
    @both
    def test_they_do_not_win(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        first = left.topic(CREATOR)
        del left.events[right.topic(CREATOR)]
        assert merge(left, right)[TOPIC] == first
        del left.events[first]
        assert TOPIC not in merge(left, right)

    @both
    def test_they_stay_where_all_states_have_them(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        left.send(CREATOR, "org.example", {})
        right = left.fork()
        left.topic(CREATOR)
        del left.events[left.state["org.example", ""]]
        assert merge(left, right) == left.state

    @both
    def test_a_room_without_create_event_resolves_to_what_is_unconflicted(
        self, room_version: str
    ) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        left.topic(CREATOR)
        del left.events["$create"]
        assert merge(left, right) == right.state

    @both
    def test_nothing_is_known_at_all(self, room_version: str) -> None:
        states = [{TOPIC: "$a", CREATE: "$c"}, {TOPIC: "$b", CREATE: "$c"}]
        assert resolve(room_version, states, {}) == {CREATE: "$c"}


class TestOtherRooms:
    @both
    def test_their_events_are_unknown(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        own = left.topic(CREATOR)
        right.topic(CREATOR, room_id="!other", ts=9000)
        assert merge(left, right)[TOPIC] == own

    @both
    def test_their_power_levels_authorise_nothing(self, room_version: str) -> None:
        left = new_room(room_version)
        left.membership(ALICE, "join")
        right = left.fork()
        foreign = right.power_levels({ALICE: 100}, room_id="!other")
        del right.state[POWER_LEVELS]
        named = [left.state[member(ALICE)], foreign]
        named += [] if room_version == "12" else ["$create"]
        right.topic(ALICE, auth_events=named)
        assert TOPIC not in merge(left, right)

    @both
    def test_without_a_create_event_the_room_is_that_of_most_events(
        self, room_version: str
    ) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        left.send(CREATOR, "org.example.own", {})
        own = left.topic(CREATOR)
        right.topic(CREATOR, room_id="!other", ts=9000)
        for branch in (left, right):
            del branch.state[CREATE]
        assert merge(left, right)[TOPIC] == own


class TestCreateEvents:
    @both
    def test_a_state_that_lacks_it_gets_it(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={})
        right = left.fork()
        topic = left.topic(CREATOR)
        del right.state[CREATE]
        assert merge(left, right) == {**left.state, TOPIC: topic}

    @both
    def test_an_empty_state(self, room_version: str) -> None:
        left = new_room(room_version, power_levels={ALICE: 50})
        left.membership(ALICE, "join")
        left.topic(ALICE)
        empty = Branch(room_version, left.events, {})
        assert merge(left, empty) == left.state


class TestCircles:
    """In versions 1 and 2 senders choose event ids, so auth events can run in circles."""

    def test_a_circle_of_power_levels(self) -> None:
        left = new_room("2", power_levels={})
        right = left.fork()
        named = ["$create", left.state[member(CREATOR)]]
        left.power_levels({ALICE: 1}, event_id="$x", auth_events=[*named, "$y"])
        right.power_levels({ALICE: 2}, event_id="$y", auth_events=[*named, "$x"])
        topic = right.topic(CREATOR)
        found = merge(left, right)
        assert found[POWER_LEVELS] in ("$x", "$y")
        assert found[TOPIC] == topic

    def test_an_event_that_names_itself(self) -> None:
        left = new_room("2", power_levels={})
        right = left.fork()
        named = ["$create", left.state[member(CREATOR)], left.state[POWER_LEVELS]]
        left.topic(CREATOR, event_id="$x", auth_events=[*named, "$x"])
        assert merge(left, right)[TOPIC] == "$x"


def deep_room(room_version: str, depth: int) -> Branch:
    """A room whose power levels have been changed `depth` times."""
    room = new_room(room_version, power_levels={})
    fixed = [] if room_version == "12" else ["$create"]
    fixed.append(room.state[member(CREATOR)])
    for _ in range(depth):
        room.power_levels({ALICE: 1}, auth_events=[*fixed, room.state[POWER_LEVELS]])
    return room


@pytest.mark.parametrize(("room_version", "depth"), [("2", 100_000), ("12", 20_000)])
def test_deep_auth_chains(room_version: str, depth: int) -> None:
    left = deep_room(room_version, depth)
    right = left.fork()
    left.power_levels({ALICE: 50, BOB: 1})
    right.topic(CREATOR)
    right.power_levels({ALICE: 50, BOB: 2})
    found = resolve(room_version, [left.state, right.state], left.events)
    assert found == {**right.state, POWER_LEVELS: found[POWER_LEVELS]}
    # One state from the very beginning: the whole chain is in the auth difference.
    start = new_room(room_version, power_levels={}).state
    found = resolve(room_version, [left.state, start], left.events)
    assert found == left.state


class TestV2Point1:
    """What version 12 changed (MSC4297)."""

    def reset(self, room_version: str) -> tuple[Branch, Branch]:
        """A state that had moved on, and one that a server gives for it without what was between.

        Bob is a member by an invite and has left the invite behind; the join rule that let him in
        is gone. The second state has an old power levels event and neither.
        """
        new = new_room(room_version, power_levels={ALICE: 100})
        new.membership(ALICE, "join")
        new.membership(BOB, "join")
        old = new.fork()
        new.join_rule("invite")
        new.power_levels({ALICE: 100, BOB: 50})
        new.topic(BOB)
        return new, old

    @pytest.mark.parametrize("room_version", ["11", "12"])
    def test_an_old_state_resets_nothing(self, room_version: str) -> None:
        new, old = self.reset(room_version)
        assert merge(new, old) == new.state

    def test_auth_checks_start_from_the_empty_state(self) -> None:
        """The unconflicted state does not get in the way of events that came before it.

        All states agree on the join rule `invite`, which came after Carol had joined. Her join,
        replayed, is judged by the rule it was sent under. (In version 11 only if that rule is in
        the auth difference, which it is not, as Bob's join, in all states, cites it too.)
        """
        for room_version, joins in (("11", False), ("12", True)):
            room = new_room(room_version, power_levels={})
            room.membership(BOB, "join")
            joined = room.membership(CAROL, "join")
            room.join_rule("invite")
            without = room.fork()
            del without.state[member(CAROL)]
            found = merge(room, without)
            assert (found.get(member(CAROL)) == joined) is joins

    def test_the_conflicted_subgraph_is_replayed(self) -> None:
        """What lies between two conflicted power levels takes part though all states share it.

        One state has the first power levels, the other the third. The second, between them, is in
        neither state, yet it is what gave alice the level to send the third.
        """
        room = new_room("12", power_levels={})
        room.membership(ALICE, "join")
        old = room.fork()
        second = room.power_levels({ALICE: 100})
        third = room.power_levels({ALICE: 100, BOB: 50}, by=ALICE)
        assert merge(room, old)[POWER_LEVELS] == third
        # A rejected link in that chain breaks it.
        assert merge(room, old, rejected=[second])[POWER_LEVELS] == old.state[POWER_LEVELS]


@pytest.mark.parametrize("algorithm", [StateResolution.V2, StateResolution.V2_1])
def test_power_events(algorithm: StateResolution) -> None:
    room = new_room("12" if algorithm is StateResolution.V2_1 else "10", power_levels={})
    power = [
        "$create",
        room.state[POWER_LEVELS],
        room.state[JOIN_RULES],
        room.membership(ALICE, "leave", by=CREATOR),
        room.membership(ALICE, "ban", by=CREATOR),
    ]
    ordinary = [
        room.membership(ALICE, "join"),
        room.membership(ALICE, "leave"),
        room.membership(ALICE, "invite", by=CREATOR),
        room.topic(CREATOR),
        room.send(CREATOR, "m.room.power_levels", {}, "key"),
        room.send(CREATOR, "m.room.join_rules", {}, None),
        room.send(CREATOR, "m.room.member", {"membership": "ban"}, None),
        room.send(CREATOR, "m.room.member", {"membership": ["ban"]}, BOB),
    ]
    assert all(is_power_event(room.events[event_id]) for event_id in power)
    assert not any(is_power_event(room.events[event_id]) for event_id in ordinary)
