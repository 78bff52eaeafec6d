"""The index of a shared state: what it answers, and what it spares."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from federation.events import Event
from resync.state import IndexedState, resolve, resolve_deltas
from tests.unit.resync.state.branches import (
    ALICE,
    CREATOR,
    POWER_LEVELS,
    TOPIC,
    Branch,
    member,
    new_room,
)


class Counted(Mapping[str, Any]):
    """A mapping that notes what it is asked for."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self.asked: list[str] = []

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("must not be walked through")

    def __len__(self) -> int:
        raise AssertionError("must not be counted")


def auth_events(events: Mapping[str, Event]) -> dict[str, tuple[str, ...]]:
    return {event_id: event.auth_event_ids for event_id, event in events.items()}


@pytest.mark.parametrize("seed", range(30))
def test_the_common_chain(seed: int) -> None:
    """Against its definition, on random graphs; half of them with circles."""
    rng = random.Random(seed)
    ids = [f"n{number}" for number in range(30)]
    cites = {
        event_id: rng.sample(ids if seed % 2 else ids[:number], min(number, rng.randrange(3)))
        for number, event_id in enumerate(ids)
    }

    def chain(roots: set[str]) -> set[str]:
        found = set(roots)
        while more := {cited for event_id in found for cited in cites[event_id]} - found:
            found |= more
        return found

    state = {("t", event_id): event_id for event_id in rng.sample(ids, 12)}
    indexed = IndexedState(state, cites)
    for _ in range(4):
        for left_out in ([], rng.sample(list(indexed), 3), list(indexed)):
            common = indexed.common_chain(left_out)
            expected = chain({indexed[key] for key in indexed if key not in left_out})
            for event_id in rng.sample(ids, len(ids)) * 2:
                assert (event_id in common) == (event_id in expected)
            assert "unknown" not in common
        changes: dict[tuple[str, str], str | None] = {("t", i): i for i in rng.sample(ids, 2)}
        changes.update((key, None) for key in rng.sample(list(indexed), 2))
        indexed.update(changes)
        state = {k: v for k, v in {**state, **changes}.items() if v is not None}
        assert dict(indexed) == state


def test_it_is_a_mapping_of_its_own() -> None:
    state = {TOPIC: "$a"}
    indexed = IndexedState(state, {})
    state[TOPIC] = "$b"
    assert indexed[TOPIC] == "$a"
    assert len(indexed) == 1
    assert list(indexed) == [TOPIC]
    assert ("no", "such") not in indexed
    indexed.update({("no", "such"): None})
    assert dict(indexed) == {TOPIC: "$a"}


def large_room(room_version: str, members: int) -> Branch:
    room = new_room(room_version, power_levels={ALICE: 50})
    room.membership(ALICE, "join")
    for number in range(members):
        room.membership(f"@member{number}:example", "join")
    return room


@pytest.mark.parametrize("room_version", ["1", "10", "12"])
def test_deltas_cost_what_they_change(room_version: str) -> None:
    """The events looked at do not grow with the room, once it is indexed."""
    looked_at = []
    for members in (20, 400):
        left = large_room(room_version, members)
        base = dict(left.state)
        right = left.fork()
        left.topic(ALICE)
        left.power_levels({ALICE: 50, CREATOR: 100} if room_version != "12" else {ALICE: 50})
        right.topic(ALICE)
        right.membership("@member3:example", "ban", by=CREATOR)
        changed = (TOPIC, POWER_LEVELS, member("@member3:example"))
        deltas = [{k: b.state[k] for k in changed if k in b.state} for b in (left, right)]
        indexed = IndexedState(base, auth_events(left.events))
        events = Counted(left.events)
        changes = resolve_deltas(room_version, indexed, deltas, events)
        expected = resolve(room_version, [left.state, right.state], left.events)
        assert {**base, **changes} == expected
        assert len(events.asked) == len(set(events.asked))
        looked_at.append(len(events.asked))
    assert looked_at[0] == looked_at[1] < 16


def test_changes_that_all_states_share_are_changes() -> None:
    room = large_room("10", 3)
    base = dict(room.state)
    topic = room.topic(ALICE)
    changes = resolve_deltas(
        "10",
        base,
        [{TOPIC: topic, member(ALICE): None}, {TOPIC: topic, member(ALICE): None}],
        room.events,
    )
    assert changes == {TOPIC: topic, member(ALICE): None}


def test_no_deltas_no_changes() -> None:
    assert resolve_deltas("10", {TOPIC: "$a"}, [], {}) == {}
    assert resolve_deltas("10", {TOPIC: "$a"}, [{}], {}) == {}
    assert resolve_deltas("10", {TOPIC: "$a"}, [{TOPIC: "$a"}, {}], {}) == {}
