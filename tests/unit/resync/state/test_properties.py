"""What holds for every resolution, on random room histories."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.events import Event, StateKey
from resync.auth import NotAuthorised, check_auth_rules
from resync.state import IndexedState, resolve, resolve_deltas
from tests.histories import ALL_VERSIONS, History, State, random_history
from tests.strategies.rooms import histories
from tests.unit.resync.state.reference import Reference

MODERATE = settings(max_examples=20, deadline=None)


def delta(base: Mapping[Any, str], state: Mapping[Any, str]) -> dict[Any, str | None]:
    """What `state` changes in `base`."""
    changed: dict[Any, str | None] = {k: v for k, v in state.items() if base.get(k) != v}
    changed.update((key, None) for key in base if key not in state)
    return changed


def applied(base: Mapping[Any, str], changes: Mapping[Any, str | None]) -> State:
    found = {**base, **changes}
    return {key: event_id for key, event_id in found.items() if event_id is not None}


class LazyEvents(Mapping[str, Event]):
    """Events that are counted as they are asked for."""

    def __init__(self, events: Mapping[str, Event]) -> None:
        self._events = events
        self.asked: list[str] = []

    def __getitem__(self, event_id: str) -> Event:
        self.asked.append(event_id)
        return self._events[event_id]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("resolution must not walk through all events")

    def __len__(self) -> int:
        raise AssertionError("resolution must not count all events")


@pytest.mark.parametrize("room_version", [v for v in ALL_VERSIONS if v != "1"])
@pytest.mark.parametrize("seed", range(6))
def test_resolution_is_what_the_text_says(room_version: str, seed: int) -> None:
    history = random_history(room_version, seed, length=50)
    conflicts = [*history.merges, *history.conflicts(random.Random(seed), 12)]
    for rejected in (history.rejected, {*history.rejected, *list(history.events)[8::9]}):
        for states in conflicts:
            reference = Reference(room_version, history.events, rejected)
            expected = reference.resolve(states)
            assert resolve(room_version, states, history.events, rejected=rejected) == expected
            # Every event that was let in passes the authorisation rules; those of the result that
            # are not among them are unconflicted.
            let_in = {event.event_id for event, _ in reference.applied}
            for key, event_id in expected.items():
                assert event_id in let_in or all(s.get(key) == event_id for s in states)
            for event, auth_state in reference.applied:
                assert event.type == "m.room.create" or is_allowed(event, auth_state)


def is_allowed(event: Event, auth_state: Mapping[StateKey, Event]) -> bool:
    try:
        check_auth_rules(event, auth_state)
    except NotAuthorised:
        return False
    return True


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_states_and_events_does_not_matter(
    history: History, rng: random.Random
) -> None:
    for states in history.conflicts(rng, 6):
        found = resolve(history.room_version, states, history.events, rejected=history.rejected)
        shuffled = rng.sample(states, len(states))
        events = dict(rng.sample(list(history.events.items()), len(history.events)))
        states = [dict(rng.sample(list(state.items()), len(state))) for state in shuffled]
        states.append(rng.choice(states))
        assert found == resolve(
            history.room_version, states, events, rejected=list(history.rejected)
        )


@MODERATE
@given(histories(max_length=40))
def test_a_state_resolved_with_itself_is_itself(history: History) -> None:
    for state in history.state_after.values():
        for states in ([state], [state, state], [state, dict(state), state]):
            assert resolve(history.room_version, states, history.events) == state


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_resolving_the_result_again_changes_nothing(history: History, rng: random.Random) -> None:
    for states in history.conflicts(rng, 6):
        found = resolve(history.room_version, states, history.events, rejected=history.rejected)
        again = resolve(
            history.room_version, [found, found], history.events, rejected=history.rejected
        )
        assert again == found


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_what_all_states_have_stays(history: History, rng: random.Random) -> None:
    for states in history.conflicts(rng, 6):
        found = resolve(history.room_version, states, history.events, rejected=history.rejected)
        common = set(states[0].items()).intersection(*(state.items() for state in states[1:]))
        assert common <= found.items()
        # The create event is in every state, so it is in the result.
        assert ("m.room.create", "") in found
        for key, event_id in found.items():
            assert history.events[event_id].key == key


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_deltas_of_any_base_give_the_same(history: History, rng: random.Random) -> None:
    version = history.room_version
    auth_events = {i: event.auth_event_ids for i, event in history.events.items()}
    all_states = list(history.state_after.values())
    indexed = IndexedState(rng.choice(all_states), auth_events)
    for states in history.conflicts(rng, 10):
        expected = resolve(version, states, history.events, rejected=history.rejected)
        bases: list[Mapping[Any, str]] = [{}, rng.choice(all_states), indexed]
        for base in bases:
            deltas = [delta(base, state) for state in states]
            events = LazyEvents(history.events)
            changes = resolve_deltas(version, base, deltas, events, rejected=history.rejected)
            assert applied(base, changes) == expected
            assert changes == delta(base, expected)
        # The index follows the state: on to the result.
        indexed.update(delta(indexed, expected))
        assert dict(indexed) == expected


@MODERATE
@given(histories(max_length=30), st.randoms(use_true_random=False))
def test_any_mapping_will_do(history: History, rng: random.Random) -> None:
    for states in history.conflicts(rng, 3):
        plain = resolve(history.room_version, states, history.events)
        keyed = [MappingProxyType({StateKey(*k): v for k, v in state.items()}) for state in states]
        found = resolve(history.room_version, keyed, MappingProxyType(history.events))
        assert found == plain
        assert type(found) is dict


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_arguments_are_not_changed(history: History, rng: random.Random) -> None:
    for states in history.conflicts(rng, 3):
        before = [dict(state) for state in states]
        resolve(history.room_version, states, history.events)
        assert states == before


@MODERATE
@given(histories(), st.randoms(use_true_random=False))
def test_missing_events_never_win_and_never_stop_it(history: History, rng: random.Random) -> None:
    ids = list(history.events)
    missing = set(rng.sample(ids, len(ids) // 4))
    events = {i: event for i, event in history.events.items() if i not in missing}
    for states in history.conflicts(rng, 6):
        found = resolve(history.room_version, states, events)
        for key, event_id in found.items():
            if event_id in missing:
                # It is what the states agree on; in version 1 states without the key have no say.
                assert {state.get(key, event_id) for state in states} == {event_id}
