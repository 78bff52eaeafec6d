"""State resolution of room version 1.

Source: room version 1, "State resolution". Where its words leave room, deployed servers decide:

* The power levels, the join rules and each user's membership are resolved by themselves, against
  the unconflicted state and what the passes before theirs have settled.
* When no event for a key passes, the one that comes last in the order of the final pass is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping

from federation.events import Event
from resync.auth import NotAuthorised
from resync.auth.auth_state import POWER_LEVELS_KEY
from resync.auth.rules import check_state_dependent_rules
from resync.state.auth_graph import AuthGraph
from resync.state.conflicts import Conflicts, Key, Unconflicted


def resolve_v1(conflicts: Conflicts, graph: AuthGraph, rejected: Container[str]) -> dict[Key, str]:
    """Resolve conflicted states.

    Args:
        conflicts: the states; keys that some of them lack are not conflicted in this version.
        graph: the events.
        rejected: ids of rejected events; they are treated as unknown.

    Returns:
        The resolved entries of the conflicted keys, but for keys of which no event is known.
    """
    resolved: dict[Key, Event] = {}
    contested: dict[Key, list[Event]] = {}
    single: dict[Key, Event] = {}
    for key, event_ids in conflicts.conflicted.items():
        events = [
            event
            for event_id in event_ids
            if event_id not in rejected and (event := graph.event(event_id)) is not None
        ]
        if len(events) > 1:
            contested[key] = events
        elif events:
            single[key] = events[0]

    # "First we resolve conflicts between m.room.power_levels events." Then "repeat the above
    # process" for m.room.join_rules and m.room.member events.
    state = _State(graph, conflicts.unconflicted, resolved, rejected)
    for keys in (
        [key for key in contested if key == POWER_LEVELS_KEY],
        [key for key in contested if key[0] == "m.room.join_rules"],
        [key for key in contested if key[0] == "m.room.member"],
    ):
        settled = {key: _resolve_auth_event(contested[key], state) for key in keys}
        resolved.update(settled)

    # "For all other conflicts, just pick the event with the highest depth and lowest
    # sha1(event_id) that passes authentication in R and add it to R."
    settled = {
        key: _resolve_other_event(events, state)
        for key, events in contested.items()
        if key not in resolved
    }
    return {key: event.event_id for key, event in {**resolved, **settled, **single}.items()}


class _State:
    """R, the results so far: the unconflicted state, what is resolved, and one entry on top."""

    def __init__(
        self,
        graph: AuthGraph,
        unconflicted: Unconflicted,
        resolved: Mapping[Key, Event],
        rejected: Container[str],
    ) -> None:
        self._graph = graph
        self._unconflicted = unconflicted
        self._resolved = resolved
        self._rejected = rejected
        self.top: Event | None = None

    def get(self, key: Key) -> Event | None:
        top = self.top
        if top is not None and (top.type, top.state_key) == key:
            return top
        resolved = self._resolved.get(key)
        if resolved is not None:
            return resolved
        event_id = self._unconflicted.get(key)
        if event_id is None or event_id in self._rejected:
            return None
        return self._graph.event(event_id)


def _resolve_auth_event(events: Iterable[Event], state: _State) -> Event:
    """The event to take for a key that affects the authorisation rules.

    "Sort the list by ascending depth then descending sha1(event_id). Add the first event in the
    list to R. For each subsequent event in the list, check that the event would be allowed by the
    authorisation rules for a room in state R. If the event would be allowed, then update R with
    the event and continue with the next event in the list. If it would not be allowed, stop."
    """
    ordered = _sorted_by_depth(events)
    ordered.reverse()
    state.top = ordered[0]
    try:
        for event in ordered[1:]:
            if not _is_allowed(event, state):
                break
            state.top = event
        return state.top
    finally:
        state.top = None


def _resolve_other_event(events: Iterable[Event], state: _State) -> Event:
    ordered = _sorted_by_depth(events)
    return next((event for event in ordered if _is_allowed(event, state)), ordered[-1])


def _is_allowed(event: Event, state: _State) -> bool:
    try:
        check_state_dependent_rules(event, state)
    except NotAuthorised:
        return False
    return True


def _sorted_by_depth(events: Iterable[Event]) -> list[Event]:
    """The highest depth first, then the lowest `sha1(event_id)`."""
    return sorted(events, key=lambda event: (-event.depth, _sha1(event.event_id)))


def _sha1(event_id: str) -> bytes:
    return hashlib.sha1(event_id.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
