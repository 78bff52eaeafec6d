"""The auth checks that depend on a room's state, for events in the order of the room's graph.

Nothing here does I/O of its own: stored events come from a cache that loads them in bulk.
Source: server-server API, "Checks performed on receipt of a PDU" (checks 4 and 5); faster joins,
"Fixing the approximation with a resync".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from federation.events import Event, StateKey
from resync.auth import NotAuthorised, check_auth_rules, state_needed_for_event
from resync.outliers import Verdict, auth_dependencies, check_against_auth_events
from resync.state import resolve_deltas
from resync.walk.states import Changes, RoomState, RoomStates
from resync.walk.verdict_cache import VerdictCache


def resolve_states(
    room_version: str,
    states: RoomStates,
    parents: Sequence[RoomState],
    cache: VerdictCache,
    event_id: str,
) -> RoomState:
    """The resolution of the states after an event's parents: the state before `event_id`."""
    distinct = list({id(parent): parent for parent in parents}.values())
    if len(distinct) == 1:
        return distinct[0]
    if not distinct:
        return states.adopt({}, event_id)
    changes = _resolve_changes(room_version, states, [parent.changes for parent in distinct], cache)
    return states.merged(changes, event_id, distinct[0])


def _resolve_changes(
    room_version: str, states: RoomStates, deltas: Sequence[Changes], cache: VerdictCache
) -> Changes:
    """State resolution over states given as changes to the base, as changes to the base."""
    differing = {
        value
        for delta in deltas
        for key in delta
        for value in (delta[key], states.base.get(key))
        if value is not None
    }
    cache.preload_auth_chains(differing)
    changes = resolve_deltas(
        room_version,
        states.indexed_base(cache.load_auth_edges),
        cast(Sequence[Mapping[tuple[str, str], str | None]], deltas),
        cache.events,
        rejected=cache.rejected,
    )
    return {StateKey(*key): event_id for key, event_id in changes.items()}


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
    rechecked = []
    for before in events:
        result = _recheck(room_version, before, states, states_after, cache)
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


def _recheck(
    room_version: str,
    stored: Verdict,
    states: RoomStates,
    states_after: Mapping[str, RoomState],
    cache: VerdictCache,
) -> Rechecked:
    event = stored.event
    parents = [states_after[prev_id] for prev_id in event.prev_event_ids if prev_id in states_after]
    before = resolve_states(room_version, states, parents, cache, event.event_id)
    rejection = check_against_auth_events(event, cache.known(auth_dependencies(event)))
    if rejection is None:
        rejection = check_against_state(event, lambda key: states.value(before, key), cache)
    after = before
    if rejection is None and event.is_state:
        after = states.with_event(before, event.key, event.event_id)
    changed = (rejection is None) != (stored.rejection is None)
    return Rechecked(event, after, rejection, changed)
