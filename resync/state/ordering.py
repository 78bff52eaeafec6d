"""The two orders in which state resolution takes events.

Source: room version 2, "Reverse topological power ordering" and "Mainline ordering".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from federation.events import Event
from resync.auth.levels import MalformedPowerLevel, PowerLevel, user_level
from resync.state.auth_graph import AuthGraph


def sort_power_events(
    graph: AuthGraph, power_events: Iterable[Event], full_conflicted_set: Mapping[str, Event]
) -> list[Event]:
    """Step 1: the power events with the full conflicted events in their auth chains, sorted.

    The auth chains are followed from one event of the full conflicted set to the next, which is
    how deployed servers read the step.

    Returns:
        The events in reverse topological power ordering. Events in a circle, and those whose auth
        chain holds one, have no place in such an order and are left out.
    """
    cites: dict[str, list[str]] = {}
    stack = [event.event_id for event in power_events]
    while stack:
        event_id = stack.pop()
        if event_id not in cites:
            auth_event_ids = dict.fromkeys(graph.auth_event_ids(full_conflicted_set[event_id]))
            cites[event_id] = [cited for cited in auth_event_ids if cited in full_conflicted_set]
            stack.extend(cites[event_id])
    return _reverse_topological_power_ordering(graph, cites, full_conflicted_set)


def _reverse_topological_power_ordering(
    graph: AuthGraph, cites: Mapping[str, list[str]], events: Mapping[str, Event]
) -> list[Event]:
    """Kahn's algorithm, at each step selecting the smallest of the candidates.

    Args:
        graph: the auth events.
        cites: the events to sort, with those of them that each names as auth events.
        events: the events to sort, and perhaps more.
    """
    cited_by: dict[str, list[str]] = {event_id: [] for event_id in cites}
    waiting_for: dict[str, int] = {}
    candidates: list[tuple[PowerLevel, int, str]] = []
    for event_id, auth_events in cites.items():
        waiting_for[event_id] = len(auth_events)
        for auth_event in auth_events:
            cited_by[auth_event].append(event_id)
        if not auth_events:
            candidates.append(_power_order(graph, events[event_id]))
    heapq.heapify(candidates)
    ordered = []
    while candidates:
        event_id = heapq.heappop(candidates)[2]
        ordered.append(events[event_id])
        for citing in cited_by[event_id]:
            waiting_for[citing] -= 1
            if waiting_for[citing] == 0:
                heapq.heappush(candidates, _power_order(graph, events[citing]))
    return ordered


def _power_order(graph: AuthGraph, event: Event) -> tuple[PowerLevel, int, str]:
    """What events compare by: greater power first, then the earlier, then the lesser id."""
    return -sender_level(graph, event), event.origin_server_ts, event.event_id


def sender_level(graph: AuthGraph, event: Event) -> PowerLevel:
    """The power level of an event's sender "when looking at their respective auth events".

    0 where those do not tell, because they are unknown or cannot be read.
    """
    create: Event | None = None
    power_levels: Event | None = None
    for event_id in graph.auth_event_ids(event):
        auth_event = graph.event(event_id)
        if auth_event is None or auth_event.state_key != "":
            continue
        if auth_event.type == "m.room.power_levels":
            power_levels = auth_event
        elif auth_event.type == "m.room.create":
            create = auth_event
    if create is None:
        return 0
    try:
        return user_level(event.sender, create, power_levels)
    except MalformedPowerLevel:
        return 0


def sort_by_mainline(
    graph: AuthGraph, events: Iterable[Event], power_levels: str | None
) -> list[Event]:
    """Step 3: events in the mainline ordering based on a power levels event.

    Args:
        graph: the auth events.
        events: the events to sort, each once.
        power_levels: P, the event that the mainline starts from; None if there is none.
    """
    mainline = _Mainline(graph, power_levels)
    keyed = [
        (-mainline.position(event), event.origin_server_ts, event.event_id, event)
        for event in events
    ]
    # No two event ids are equal, so events themselves are never compared.
    keyed.sort()
    return [key[3] for key in keyed]


_INFINITE = float("inf")


class _Mainline:
    """The mainline of a power levels event, and the places of events on it.

    Built as far as it is needed: most events hang on its first few.
    """

    def __init__(self, graph: AuthGraph, power_levels: str | None) -> None:
        self._graph = graph
        self._next = power_levels
        self._mainline: dict[str, int] = {}
        self._positions: dict[str, float] = {}

    def position(self, event: Event) -> float:
        """The mainline position of an event: i where P_i is the first it rests on, or ∞."""
        parent = self._power_levels_of(event)
        if parent is None:
            return _INFINITE
        position = self._positions.get(parent)
        return self._walk_back(parent) if position is None else position

    def _walk_back(self, power_levels: str) -> float:
        """The position of the first event on the mainline, from `power_levels` backwards."""
        position = _INFINITE
        passed: set[str] = set()
        current: str | None = power_levels
        while current is not None and current not in passed:
            passed.add(current)
            known = self._positions.get(current)
            if known is None:
                known = self._index_on_mainline(current)
            if known is not None:
                position = known
                break
            current = self._power_levels_before(current)
        self._positions.update(dict.fromkeys(passed, position))
        return position

    def _index_on_mainline(self, power_levels: str) -> int | None:
        """i where P_i is the event, None if it is not on the mainline."""
        while self._next is not None and power_levels not in self._mainline:
            self._mainline[self._next] = len(self._mainline)
            following = self._power_levels_before(self._next)
            self._next = None if following in self._mainline else following
        return self._mainline.get(power_levels)

    def _power_levels_before(self, event_id: str) -> str | None:
        event = self._graph.event(event_id)
        return None if event is None else self._power_levels_of(event)

    def _power_levels_of(self, event: Event) -> str | None:
        """The power levels event among the auth events of an event."""
        # Nearly always one that is known already, which spares looking at the others.
        for event_id in event.auth_event_ids:
            if event_id in self._positions:
                return event_id
        for event_id in event.auth_event_ids:
            found = self._graph.event(event_id)
            if found is not None and found.type == "m.room.power_levels" and found.state_key == "":
                return event_id
        return None
