"""The order of the walk: parents first, oldest first, gaps and cycles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resync.walk.graph import WalkOrder, external_prev_events
from storage.partial_state import PartialEvent


def event(event_id: str, *prev_event_ids: str, depth: int = 1) -> PartialEvent:
    return PartialEvent(event_id, prev_event_ids, stream_ordering=depth, depth=depth)


def ids(events: list[PartialEvent]) -> list[str]:
    return [found.event_id for found in events]


def test_hands_out_parents_before_children_and_the_oldest_first() -> None:
    events = [event("$c", "$a", "$b", depth=3), event("$b", "$x", depth=2), event("$a", "$x")]
    order = WalkOrder(events, gaps=[])
    assert ids(order.take(10)) == ["$a", "$b", "$c"]
    assert len(order) == 0


def test_an_event_waits_for_the_state_at_its_gap() -> None:
    events = [event("$a", "$gap"), event("$b", "$a", depth=2), event("$c", "$known", depth=9)]
    order = WalkOrder(events, gaps=["$gap"])
    assert order.gaps_in_order() == ["$gap"]
    assert ids(order.take(10)) == ["$c"]
    assert not order.has_ready
    order.fill("$gap")
    assert ids(order.take(10)) == ["$a", "$b"]


def test_a_batch_is_no_larger_than_asked_for_and_the_rest_follows() -> None:
    chain = [event("$0", "$known", depth=0)]
    chain += [event(f"${n}", f"${n - 1}", depth=n) for n in range(1, 5)]
    order = WalkOrder(chain, gaps=[])
    assert ids(order.take(2)) == ["$0", "$1"]
    assert ids(order.take(2)) == ["$2", "$3"]
    assert ids(order.take(2)) == ["$4"]


def test_a_cycle_is_opened_at_its_oldest_event() -> None:
    events = [event("$a", "$b"), event("$b", "$a", depth=2), event("$c", "$b", depth=3)]
    order = WalkOrder(events, gaps=[])
    assert not order.has_ready
    assert order.break_cycle() == ["$b"]
    assert ids(order.take(10)) == ["$a", "$b", "$c"]


def test_an_event_that_names_itself_does_not_wait_for_itself() -> None:
    assert ids(WalkOrder([event("$a", "$a")], gaps=[]).take(1)) == ["$a"]


def test_parents_outside_are_those_that_are_not_partial() -> None:
    assert external_prev_events([event("$a", "$x"), event("$b", "$a", "$y")]) == {"$x", "$y"}


@st.composite
def graphs(draw: st.DrawFn) -> list[PartialEvent]:
    """Any graph, cycles included, over a few events and gaps."""
    count = draw(st.integers(1, 12))
    names = st.sampled_from([f"${n}" for n in range(count)] + ["$gap1", "$gap2", "$known"])
    return [
        event(f"${n}", *draw(st.lists(names, max_size=4, unique=True)), depth=n)
        for n in range(count)
    ]


@given(graphs(), st.integers(1, 5))
def test_every_event_is_handed_out_exactly_once(events: list[PartialEvent], limit: int) -> None:
    gaps = {"$gap1", "$gap2"} & external_prev_events(events)
    order = WalkOrder(events, gaps)
    filled: set[str] = set()
    taken: list[str] = []
    opened: set[str] = set()
    while len(order):
        if order.has_ready:
            for found in order.take(limit):
                for prev_id in found.prev_event_ids:
                    settled = (prev_id in taken, prev_id in filled, prev_id in opened)
                    assert any(settled) or prev_id in ("$known", found.event_id)
                taken.append(found.event_id)
        elif waiting := order.gaps_in_order():
            order.fill(waiting[0])
            filled.add(waiting[0])
        else:
            opened.update(order.break_cycle())
    assert sorted(taken) == sorted(found.event_id for found in events)
