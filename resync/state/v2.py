"""State resolution v2 (room versions 2 to 11) and v2.1 (room version 12).

Source: the room version pages, "State resolution". The functions here are its definitions and the
steps of its algorithm; v2.1 differs from v2 in the two places that ask for it.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

from federation.events import Event
from federation.room_versions import StateResolution
from resync.auth.auth_state import POWER_LEVELS_KEY
from resync.state.auth_graph import AuthGraph, auth_difference, conflicted_state_subgraph
from resync.state.conflicts import Conflicts, Key
from resync.state.iterative import ResolvedState, iterative_auth_checks
from resync.state.ordering import sort_by_mainline, sort_power_events


def resolve_v2(
    algorithm: StateResolution,
    conflicts: Conflicts,
    graph: AuthGraph,
    common: Container[str],
    rejected: Container[str],
) -> dict[Key, str]:
    """Resolve conflicted states: steps 1 to 4 of the algorithm.

    Step 5, "replacing any event with the event with the same key from the unconflicted state
    map", is the caller's, who has that map.

    Args:
        algorithm: V2 or V2_1.
        conflicts: the states; some key is conflicted.
        graph: the events.
        common: the events that are unconflicted state or in the auth chain of some.
        rejected: ids of rejected events.

    Returns:
        The entries that passed the iterative auth checks. A conflicted key that is not among them
        is not in the resolved state.
    """
    full_conflicted_set = find_full_conflicted_set(algorithm, conflicts, graph, common)

    # 1. Select the set X of all power events that appear in the full conflicted set. For each such
    #    power event P, enlarge X by adding the events in the auth chain of P which also belong to
    #    the full conflicted set. Sort X into a list using the reverse topological power ordering.
    power_events = filter(is_power_event, full_conflicted_set.values())
    ordered_power_events = sort_power_events(graph, power_events, full_conflicted_set)

    # 2. Apply the iterative auth checks algorithm, starting from the unconflicted state map (v2.1:
    #    from an empty state map), to the list of events from the previous step to get a partially
    #    resolved state.
    initial = None if algorithm is StateResolution.V2_1 else conflicts.unconflicted
    resolved = ResolvedState(graph, initial, rejected)
    iterative_auth_checks(graph, ordered_power_events, resolved, rejected)

    # 3. Take all remaining events that weren't picked in step 1 and order them by the mainline
    #    ordering based on the power level in the partially resolved state obtained in step 2.
    picked = {event.event_id for event in ordered_power_events}
    remaining = [e for event_id, e in full_conflicted_set.items() if event_id not in picked]
    ordered_remaining = sort_by_mainline(graph, remaining, resolved.event_id(POWER_LEVELS_KEY))

    # 4. Apply the iterative auth checks algorithm on the partial resolved state and the list of
    #    events from the previous step.
    iterative_auth_checks(graph, ordered_remaining, resolved, rejected)
    return resolved.accepted


def find_full_conflicted_set(
    algorithm: StateResolution,
    conflicts: Conflicts,
    graph: AuthGraph,
    common: Container[str],
) -> dict[str, Event]:
    """The full conflicted set.

    "The union of the conflicted state set and the auth difference" and, in v2.1, the conflicted
    state subgraph; by event id. Events that are not known cannot be judged and are left out.
    """
    conflicted = dict.fromkeys(chain.from_iterable(conflicts.state_sets))
    full = auth_difference(graph, conflicts.state_sets, common)
    full.update((event_id, graph.event(event_id)) for event_id in conflicted)
    if algorithm is StateResolution.V2_1:
        full.update(conflicted_state_subgraph(graph, conflicted))
    return {event_id: event for event_id, event in full.items() if event is not None}


def is_power_event(event: Event) -> bool:
    """Whether an event "might remove someone's ability to do something in the room".

    A state event with type `m.room.power_levels` or `m.room.join_rules`, or a state event with
    type `m.room.member` where the `membership` is `leave` or `ban` and the `sender` does not match
    the `state_key`.

    As on deployed servers, the first two count only with the empty state key, which alone has an
    effect, and the create event counts as well, which is needed where a state lacks it.
    """
    if event.type in ("m.room.power_levels", "m.room.join_rules", "m.room.create"):
        return event.state_key == ""
    return (
        event.type == "m.room.member"
        and event.sender != event.state_key
        and event.state_key is not None
        and event.content.get("membership") in ("leave", "ban")
    )
