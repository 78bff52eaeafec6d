"""The auth checks that depend on a room's state, for events in the order of the room's graph.

Nothing here does I/O of its own: stored events come from a cache that loads them in bulk.
Source: server-server API, "Checks performed on receipt of a PDU" (checks 4 and 5); faster joins,
"Fixing the approximation with a resync".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from federation.events import Event, StateKey
from resync.auth import NotAuthorised, check_auth_rules, state_needed_for_event
from resync.outliers import Verdict, auth_dependencies, check_against_auth_events
from resync.state.batch import Problem
from resync.walk.states import Changes, RoomState, RoomStates
from resync.walk.verdict_cache import VerdictCache

WAVE_LOOKAHEAD = 64
"""How many of the next merges of a batch are looked at for the same wave."""


def resolve_states(
    room_version: str,
    states: RoomStates,
    parents: Sequence[RoomState],
    cache: VerdictCache,
    event_id: str,
) -> RoomState:
    """The resolution of the states after an event's parents: the state before `event_id`."""
    distinct = _distinct(parents)
    if len(distinct) == 1:
        return distinct[0]
    if not distinct:
        return states.adopt({}, event_id)
    changes = _resolve_changes(room_version, states, [parent.changes for parent in distinct], cache)
    return states.merged(changes, event_id, distinct[0])


def _distinct(parents: Sequence[RoomState]) -> list[RoomState]:
    return list({id(parent): parent for parent in parents}.values())


def _resolve_changes(
    room_version: str, states: RoomStates, deltas: Sequence[Changes], cache: VerdictCache
) -> Changes:
    """State resolution over states given as changes to the base, as changes to the base."""
    (changes,) = _resolve_all(room_version, states, [deltas], cache)
    return changes


def _resolve_all(
    room_version: str,
    states: RoomStates,
    problems: Sequence[Sequence[Changes]],
    cache: VerdictCache,
) -> list[Changes]:
    """`_resolve_changes` for independent problems, as one batch."""
    differing = {
        value
        for deltas in problems
        for delta in deltas
        for key in delta
        for value in (delta[key], states.base.get(key))
        if value is not None
    }
    cache.preload_auth_chains(differing)
    base = states.indexed_base(cache.load_auth_edges)
    resolved = states.resolver.resolve_batch(
        [
            Problem(
                room_version,
                base,
                cast(Sequence[Mapping[tuple[str, str], str | None]], deltas),
                cache.events,
                cache.rejected,
            )
            for deltas in problems
        ]
    )
    return [{StateKey(*key): event_id for key, event_id in changes.items()} for changes in resolved]


def check_against_state(
    event: Event, state: Callable[[StateKey], str | None], cache: VerdictCache
) -> str | None:
    """Check 5: the auth rules, on the state before the event.

    Args:
        event: the event to check.
        state: the event id of a state entry, None where there is none.

    Returns:
        Why the event is rejected, or None.
    """
    needed = {key: state(key) for key in state_needed_for_event(event)}
    known = cache.known(entry_id for entry_id in needed.values() if entry_id is not None)
    auth_state = {
        key: known[entry_id].event for key, entry_id in needed.items() if entry_id in known
    }
    try:
        check_auth_rules(event, auth_state)
    except NotAuthorised as refusal:
        return str(refusal)
    return None


def resolve_with_auth_events(
    event: Event, states: RoomStates, before: RoomState, cache: VerdictCache
) -> Changes:
    """What check 5 looks at while the room is partial, as changes to the base: the partial state
    before the event, resolved with the event's own auth events.

    Source: faster joins, "Partial state".
    """
    authorised_by: dict[StateKey, str | None] = dict(before.changes)
    for event_id, verdict in cache.known(auth_dependencies(event)).items():
        if verdict.event.is_state and verdict.rejection is None:
            authorised_by[verdict.event.key] = event_id
    return _resolve_changes(
        event.room_version.identifier, states, [before.changes, authorised_by], cache
    )


@dataclass(frozen=True, slots=True)
class Rechecked:
    """What the checks with a known state before the event found.

    Attributes:
        state_after: its state group is the one to store for the event.
        rejection: why the event is rejected, None when it is accepted.
        rejection_status_changed: it was accepted and is rejected now, or the reverse.
    """

    event: Event
    state_after: RoomState
    rejection: str | None
    rejection_status_changed: bool


def recheck_batch(
    room_version: str,
    event_ids: Sequence[str],
    states: RoomStates,
    states_after: dict[str, RoomState],
    cache: VerdictCache,
) -> list[Rechecked]:
    """Checks events in order, each after its parents.

    Args:
        event_ids: events that are stored or in `cache`.
        states_after: the state after each parent that is not in the batch; the states after the
            events of the batch are added.
    """
    events = list(cache.known(event_ids).values())
    cache.preload(_auth_candidates([verdict.event for verdict in events], states, states_after))
    waves = _Waves(room_version, [verdict.event for verdict in events], states, states_after, cache)
    rechecked = []
    for before in events:
        result = _recheck(before, states, states_after, cache, waves)
        rechecked.append(result)
        cache.set(Verdict(result.event, result.rejection))
        states_after[result.event.event_id] = result.state_after
    return rechecked


def _auth_candidates(
    events: Sequence[Event], states: RoomStates, states_after: Mapping[str, RoomState]
) -> set[str]:
    """Whatever the checks of `events` may look at, so that it is loaded at once."""
    parents = {
        id(state): state
        for event in events
        for prev_id in event.prev_event_ids
        if (state := states_after.get(prev_id)) is not None
    }
    keys = {key for event in events for key in state_needed_for_event(event)}
    candidates = {event_id for event in events for event_id in auth_dependencies(event)}
    for key in keys:
        values = [states.base.get(key), *(state.changes.get(key) for state in parents.values())]
        candidates.update(value for value in values if value is not None)
    return candidates


class _Waves:
    """The states before the events of a batch, resolved together where they are independent.

    A wave is an event and those after it whose parents' states are known too when its turn comes.
    What is resolved ahead is not used if a verdict changed meanwhile, so that the result is that of
    one event after the other.
    """

    def __init__(
        self,
        room_version: str,
        events: Sequence[Event],
        states: RoomStates,
        states_after: Mapping[str, RoomState],
        cache: VerdictCache,
    ) -> None:
        self._room_version = room_version
        self._states = states
        self._states_after = states_after
        self._cache = cache
        self._merges = {event.event_id: event for event in events if len(event.prev_event_ids) > 1}
        self._in_batch = {event.event_id for event in events}
        self._ahead: dict[str, Changes] = {}
        self._revision = cache.revision

    def state_before(self, event: Event) -> RoomState:
        """The resolution of the states after the parents of the batch's next event."""
        parents = self._parents(event)
        self._merges.pop(event.event_id, None)
        if len(parents) < 2:
            return resolve_states(
                self._room_version, self._states, parents, self._cache, event.event_id
            )
        if self._revision != self._cache.revision:
            self._ahead.clear()
        if event.event_id not in self._ahead:
            self._resolve_wave(event, parents)
        return self._states.merged(self._ahead.pop(event.event_id), event.event_id, parents[0])

    def _resolve_wave(self, event: Event, parents: list[RoomState]) -> None:
        wave = {event.event_id: parents}
        for other in islice(self._merges.values(), WAVE_LOOKAHEAD):
            if other.event_id not in self._ahead and self._is_ready(other):
                of_other = self._parents(other)
                if len(of_other) > 1:
                    wave[other.event_id] = of_other
        self._revision = self._cache.revision
        problems = [[parent.changes for parent in of_one] for of_one in wave.values()]
        resolved = _resolve_all(self._room_version, self._states, problems, self._cache)
        self._ahead.update(zip(wave, resolved, strict=True))

    def _is_ready(self, event: Event) -> bool:
        return all(
            prev_id in self._states_after or prev_id not in self._in_batch
            for prev_id in event.prev_event_ids
        )

    def _parents(self, event: Event) -> list[RoomState]:
        after = self._states_after
        return _distinct([after[prev_id] for prev_id in event.prev_event_ids if prev_id in after])


def _recheck(
    stored: Verdict,
    states: RoomStates,
    states_after: Mapping[str, RoomState],
    cache: VerdictCache,
    waves: _Waves,
) -> Rechecked:
    event = stored.event
    before = waves.state_before(event)
    rejection = check_against_auth_events(event, cache.known(auth_dependencies(event)))
    if rejection is None:
        rejection = check_against_state(event, lambda key: states.value(before, key), cache)
    after = before
    if rejection is None and event.is_state:
        after = states.with_event(before, event.key, event.event_id)
    changed = (rejection is None) != (stored.rejection is None)
    return Rechecked(event, after, rejection, changed)
