"""The order of a batch, and what it depends on."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from federation.events import Event
from resync.receive.order import in_graph_order, missing_parents, without_descendants


def event(event_id: str, prev: list[str], depth: int = 1, version: str = "10") -> Event:
    if version == "1":
        references: list[object] = [[prev_id, {}] for prev_id in prev]
    else:
        references = list(prev)
    return Event.from_pdu(
        {
            "type": "m.room.message",
            "sender": "@a:x",
            "room_id": "!r:x",
            "content": {},
            "depth": depth,
            "origin_server_ts": 0,
            "prev_events": references,
            "auth_events": [],
        },
        version,
        event_id=event_id,
    )


@st.composite
def graphs(draw: st.DrawFn) -> list[Event]:
    """A random graph, shuffled, with depths that may be lies."""
    count = draw(st.integers(0, 12))
    events = []
    for number in range(count):
        prev = draw(st.lists(st.integers(0, number), max_size=3, unique=True)) if number else []
        depth = draw(st.integers(0, 5))
        events.append(event(f"${number}", [f"${i - 1}" for i in prev], depth))
    draw(st.randoms()).shuffle(events)
    return events


@given(graphs())
@settings(max_examples=100)
def test_parents_come_first_and_nothing_is_lost(events: list[Event]) -> None:
    ordered = in_graph_order(events)
    assert sorted(e.event_id for e in ordered) == sorted(e.event_id for e in events)
    position = {e.event_id: number for number, e in enumerate(ordered)}
    for e in events:
        for prev_id in e.prev_event_ids:
            if prev_id in position:
                assert position[prev_id] < position[e.event_id]


@given(graphs(), st.integers())
@settings(max_examples=50)
def test_the_order_of_arrival_does_not_matter(events: list[Event], seed: int) -> None:
    shuffled = list(events)
    random.Random(seed).shuffle(shuffled)
    assert [e.event_id for e in in_graph_order(shuffled)] == [
        e.event_id for e in in_graph_order(events)
    ]


def test_a_cycle_comes_last() -> None:
    events = [
        event("$a:x", ["$b:x"], 1, "1"),
        event("$b:x", ["$a:x"], 2, "1"),
        event("$c:x", [], 9, "1"),
        event("$d:x", ["$d:x"], 3, "1"),
    ]
    assert [e.event_id for e in in_graph_order(events)] == ["$d:x", "$c:x", "$a:x", "$b:x"]


def test_missing_parents() -> None:
    events = [event("$1", ["$0", "$known"]), event("$2", ["$1", "$0"])]
    assert missing_parents(events, {"$known"}) == {"$0": ["$1", "$2"]}


def test_what_depends_on_something_waits_with_it() -> None:
    events = [event("$1", ["$gap"]), event("$2", ["$1"]), event("$3", ["$known"])]
    free, dependent = without_descendants(events, {"$gap"})
    assert [e.event_id for e in free] == ["$3"]
    assert [e.event_id for e in dependent] == ["$1", "$2"]
