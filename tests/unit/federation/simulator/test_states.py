from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from federation.events import StateKey
from federation.simulator.states import StateCursor, StateNode, keys_that_may_differ

A, B, C = (StateKey("m.test", name) for name in "abc")


def test_a_child_differs_by_its_changes_alone():
    root = StateNode(None, ((A, "$1"), (B, "$2")))
    child = root.child({A: "$3", C: "$4", B: None})
    assert root.materialise() == {A: "$1", B: "$2"}
    assert child.materialise() == {A: "$3", C: "$4"}


def test_no_changes_make_no_new_state():
    root = StateNode(None, ((A, "$1"),))
    assert root.child({}) is root


def test_a_state_handed_out_is_the_callers_own():
    node = StateNode(None, ((A, "$1"),))
    node.materialise()[A] = "$forged"
    assert node.materialise() == {A: "$1"}


def test_a_long_history_over_few_entries_stays_right_once_it_is_snapshotted():
    node = StateNode(None, ())
    nodes = []
    for number in range(2000):
        node = node.child({(A, B, C)[number % 3]: f"${number}"})
        nodes.append(node)
    assert nodes[-1].materialise() == {A: "$1998", B: "$1999", C: "$1997"}
    # Again, from the snapshot; and states on both sides of it.
    assert nodes[-1].materialise() == {A: "$1998", B: "$1999", C: "$1997"}
    assert nodes[0].materialise() == {A: "$0"}
    assert nodes[1000].materialise() == {A: "$999", B: "$1000", C: "$998"}
    assert nodes[-1].child({A: "$new"}).materialise() == {A: "$new", B: "$1999", C: "$1997"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.sampled_from((A, B, C)),
            st.one_of(st.none(), st.integers(0, 5).map(str)),
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 10_000), max_size=40),
)
def test_states_agree_with_plain_dicts_in_whatever_order_they_are_visited(steps, visits):
    nodes = [StateNode(None, ())]
    expected = [{}]
    for parent, key, value in steps:
        parent %= len(nodes)
        nodes.append(nodes[parent].child({key: value}))
        state = {**expected[parent], key: value}
        expected.append({name: item for name, item in state.items() if item is not None})
    cursor = StateCursor(size=2)
    for visit in visits:
        visit %= len(nodes)
        assert cursor.at(nodes[visit]) == expected[visit]
    assert [node.materialise() for node in nodes] == expected
    for left, ours in zip(nodes, expected, strict=True):
        for right, theirs in zip(nodes, expected, strict=True):
            differing = {key for key in (A, B, C) if ours.get(key) != theirs.get(key)}
            assert differing <= keys_that_may_differ(left, right).keys()
