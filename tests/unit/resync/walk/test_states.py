"""States as differences from one base, and the state groups planned for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from federation.events import StateKey
from resync.walk.states import PlannedGroup, RoomState, RoomStates

NAME = StateKey("m.room.name", "")
TOPIC = StateKey("m.room.topic", "")
ALICE = StateKey("m.room.member", "@alice:a")

full_states = st.dictionaries(
    st.sampled_from([NAME, TOPIC, ALICE, StateKey("x", "1"), StateKey("x", "2")]),
    st.sampled_from(["$1", "$2", "$3"]),
)


def content_of(group: PlannedGroup) -> dict[StateKey, str]:
    """What the database would answer for a group."""
    state = {} if group.prev is None else content_of(group.prev)
    return state | dict(group.delta)


def test_the_first_state_is_the_base_and_later_ones_are_differences() -> None:
    states = RoomStates()
    states.adopt({NAME: "$1", TOPIC: "$2"}, "$a")
    second = states.adopt({NAME: "$9", TOPIC: "$2"}, "$b")
    assert second.changes == {NAME: "$9"}
    assert second.group.delta == {NAME: "$9"}
    assert second.group.prev is not None
    assert second.group.prev.delta == {NAME: "$1", TOPIC: "$2"}


def test_a_state_that_lacks_an_entry_gets_a_group_of_its_own() -> None:
    states = RoomStates()
    states.adopt({NAME: "$1", TOPIC: "$2"}, "$a")
    second = states.adopt({NAME: "$1"}, "$b")
    assert second.changes == {TOPIC: None}
    assert second.group.prev is None
    assert second.group.delta == {NAME: "$1"}


def test_a_stored_state_plans_no_group() -> None:
    states = RoomStates()
    stored = states.adopt({NAME: "$1"}, "$a", group_id=7)
    assert stored.group.group_id == 7
    assert states.take_new_groups() == []
    after = states.with_event(stored, ALICE, "$join")
    assert [group.delta for group in states.take_new_groups()] == [{ALICE: "$join"}]
    assert after.group.prev is stored.group


def test_a_resolution_that_equals_its_parent_is_its_parent() -> None:
    states = RoomStates()
    base = states.adopt({NAME: "$1"}, "$a")
    assert states.merged({}, "$merge", base) is base


@given(st.lists(full_states, min_size=1, max_size=6), st.integers(0, 5))
def test_no_state_is_changed_by_those_that_come_after_it(
    fulls: list[dict[StateKey, str]], parent: int
) -> None:
    states = RoomStates()
    adopted: list[tuple[dict[StateKey, str], RoomState]] = [
        (dict(full), states.adopt(full, f"$event{n}")) for n, full in enumerate(fulls)
    ]
    expected, state = adopted[parent % len(adopted)]
    adopted.append(({**expected, ALICE: "$join"}, states.with_event(state, ALICE, "$join")))
    for expected, state in adopted:
        assert states.full(state) == expected
        assert content_of(state.group) == expected
        for key in (NAME, TOPIC, ALICE):
            assert states.value(state, key) == expected.get(key)


@given(full_states, full_states, full_states)
def test_a_merge_is_stored_as_what_differs_from_its_parent(
    base: dict[StateKey, str], parent: dict[StateKey, str], result: dict[StateKey, str]
) -> None:
    states = RoomStates()
    states.adopt(dict(base), "$a")
    before = states.adopt(dict(parent), "$b")
    changes: dict[StateKey, str | None] = dict(result.items() - base.items())
    changes.update(dict.fromkeys(base.keys() - result.keys()))
    merged = states.merged(changes, "$merge", before)
    assert states.full(merged) == result
    assert content_of(merged.group) == result
