"""State resolution v2 (room versions 2 to 11) and v2.1 (room version 12).

Source: the room version pages, "State resolution". The functions here are its definitions and the
steps of its algorithm; v2.1 differs from v2 in the two places that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from federation.events import Event
from federation.room_versions import StateResolution
from resync.state.auth_graph import AuthGraph, auth_difference, conflicted_state_subgraph
from resync.state.conflicts import Conflicts, Key
from resync.state.iterative import ResolvedState, iterative_auth_checks
from resync.state.ordering import sort_by_mainline, sort_power_events

_POWER_LEVELS = ("m.room.power_levels", "")


def resolve_v2(
    algorithm: StateResolution,
    conflicts: Conflicts,
    graph: AuthGraph,
    is_common: Callable[[int], bool],
    rejected: Container[str],
) -> dict[Key, str]:
    """Resolve conflicted states: steps 1 to 4 of the algorithm.

    Step 5, "replacing any event with the event with the same key from the unconflicted state
    map", is the caller's, who has that map.

    Args:
        algorithm: V2 or V2_1.
        conflicts: the states; some key is conflicted.
        graph: the events.
        is_common: whether an event is unconflicted state or in the auth chain of some.
        rejected: ids of rejected events.

    Returns:
        The entries that passed the iterative auth checks. A conflicted key that is not among them
        is not in the resolved state.
    """
    full_conflicted_set = find_full_conflicted_set(algorithm, conflicts, graph, is_common)

    # 1. Select the set X of all power events that appear in the full conflicted set. For each such
    #    power event P, enlarge X by adding the events in the auth chain of P which also belong to
    #    the full conflicted set. Sort X into a list using the reverse topological power ordering.
    power_events = [
        number
        for number in full_conflicted_set
        if (event := graph.events[number]) is not None and is_power_event(event)
    ]
    ordered_power_events = sort_power_events(graph, power_events, full_conflicted_set)

    # 2. Apply the iterative auth checks algorithm, starting from the unconflicted state map (v2.1:
    #    from an empty state map), to the list of events from the previous step to get a partially
    #    resolved state.
    initial = None if algorithm is StateResolution.V2_1 else conflicts.unconflicted
    resolved = ResolvedState(graph, initial, rejected)
    iterative_auth_checks(graph, ordered_power_events, resolved, rejected)

    # 3. Take all remaining events that weren't picked in step 1 and order them by the mainline
    #    ordering based on the power level in the partially resolved state obtained in step 2.
    remaining = full_conflicted_set.difference(ordered_power_events)
    power_levels = resolved.event_id(_POWER_LEVELS)
    ordered_remaining = sort_by_mainline(
        graph, remaining, None if power_levels is None else graph.number(power_levels)
    )

    # 4. Apply the iterative auth checks algorithm on the partial resolved state and the list of
    #    events from the previous step.
    iterative_auth_checks(graph, ordered_remaining, resolved, rejected)
    return resolved.accepted


def find_full_conflicted_set(
    algorithm: StateResolution,
    conflicts: Conflicts,
    graph: AuthGraph,
    is_common: Callable[[int], bool],
) -> set[int]:
    """The full conflicted set.

    "The union of the conflicted state set and the auth difference" and, in v2.1, the conflicted
    state subgraph; as numbers. Events that are not known cannot be judged and are left out.
    """
    state_sets: list[Collection[int]] = [
        graph.numbers(state_set) for state_set in conflicts.state_sets
    ]
    conflicted = {number for state_set in state_sets for number in state_set}
    full = conflicted | auth_difference(graph, state_sets, is_common)
    if algorithm is StateResolution.V2_1:
        full |= conflicted_state_subgraph(graph, conflicted)
    return {number for number in full if graph.events[number] is not None}


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
