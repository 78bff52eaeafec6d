"""The two orders in which state resolution takes events.

Source: room version 2, "Reverse topological power ordering" and "Mainline ordering".
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from federation.events import Event
from resync.auth.levels import MalformedPowerLevel, PowerLevel, user_level
from resync.state.auth_graph import AuthGraph


def sort_power_events(
    graph: AuthGraph, power_events: Iterable[int], full_conflicted_set: Collection[int]
) -> list[int]:
    """Step 1: the power events with the full conflicted events in their auth chains, sorted.

    The auth chains are followed from one event of the full conflicted set to the next, which is
    how deployed servers read the step.

    Returns:
        Numbers of events in reverse topological power ordering. Events in a circle, and those
        whose auth chain holds one, have no place in such an order and are left out.
    """
    cites: dict[int, list[int]] = {}
    stack = list(power_events)
    while stack:
        number = stack.pop()
        if number not in cites:
            cited = {n for n in graph.auth_events(number) if n in full_conflicted_set}
            cites[number] = list(cited)
            stack.extend(cited)
    return _reverse_topological_power_ordering(graph, cites)


def _reverse_topological_power_ordering(graph: AuthGraph, cites: dict[int, list[int]]) -> list[int]:
    """Kahn's algorithm, at each step selecting the smallest of the candidates.

    Args:
        graph: the events.
        cites: the events to sort, with those of them that each names as auth events.
    """
    cited_by: dict[int, list[int]] = {number: [] for number in cites}
    waiting_for: dict[int, int] = {}
    candidates: list[tuple[PowerLevel, int, str, int]] = []
    for number, cited in cites.items():
        waiting_for[number] = len(cited)
        for auth_event in cited:
            cited_by[auth_event].append(number)
        if not cited:
            candidates.append(_power_order(graph, number))
    heapq.heapify(candidates)
    ordered = []
    while candidates:
        number = heapq.heappop(candidates)[3]
        ordered.append(number)
        for citing in cited_by[number]:
            waiting_for[citing] -= 1
            if waiting_for[citing] == 0:
                heapq.heappush(candidates, _power_order(graph, citing))
    return ordered


def _power_order(graph: AuthGraph, number: int) -> tuple[PowerLevel, int, str, int]:
    """What events compare by: greater power first, then the earlier, then the lesser id."""
    event = graph.events[number]
    timestamp = 0 if event is None else event.origin_server_ts
    return -sender_level(graph, number), timestamp, graph.event_ids[number], number


def sender_level(graph: AuthGraph, number: int) -> PowerLevel:
    """The power level of an event's sender "when looking at their respective auth events".

    0 where those do not tell, because they are unknown or cannot be read.
    """
    event = graph.events[number]
    if event is None:
        return 0
    create: Event | None = None
    power_levels: Event | None = None
    for auth_event in graph.auth_events(number):
        found = graph.events[auth_event]
        if found is None or found.state_key != "":
            continue
        if found.type == "m.room.power_levels":
            power_levels = found
        elif found.type == "m.room.create":
            create = found
    if create is None:
        return 0
    try:
        return user_level(event.sender, create, power_levels)
    except MalformedPowerLevel:
        return 0


class Mainline:
    """The mainline of a power levels event, and the places of events on it.

    Built as far as it is needed: most events hang on its first few.
    """

    def __init__(self, graph: AuthGraph, power_levels: int | None) -> None:
        """
        Args:
            graph: the events.
            power_levels: P, the power levels event that the mainline starts from. None: the room
                has none, the mainline is empty.
        """
        self._graph = graph
        self._next = power_levels
        self._mainline: dict[int, int] = {}
        self._positions: dict[int, float] = {}

    def position(self, number: int) -> float:
        """The mainline position of an event: the least i for which it comes after P_i, or ∞."""
        parent = _power_levels_of(self._graph, number)
        if parent is None:
            return _NOWHERE
        position = self._positions.get(parent)
        return self._position_of_power_levels(parent) if position is None else position

    def _position_of_power_levels(self, number: int) -> float:
        """The position of the first event on the mainline, from `number` backwards."""
        path = []
        seen = set()
        current: int | None = number
        position = _NOWHERE
        while current is not None and current not in seen:
            known = self._positions.get(current)
            if known is None:
                known = self._index(current)
            if known is not None:
                position = known
                break
            seen.add(current)
            path.append(current)
            current = _power_levels_of(self._graph, current)
        self._positions.update((passed, position) for passed in path)
        self._positions[number] = position
        return position

    def _index(self, number: int) -> int | None:
        """i for which P_i is the event, None if it is not on the mainline."""
        while self._next is not None and number not in self._mainline:
            self._mainline[self._next] = len(self._mainline)
            following = _power_levels_of(self._graph, self._next)
            self._next = None if following in self._mainline else following
        return self._mainline.get(number)


_NOWHERE = float("inf")


def sort_by_mainline(
    graph: AuthGraph, numbers: Iterable[int], power_levels: int | None
) -> list[int]:
    """Step 3: events in the mainline ordering based on a power levels event, None if there is none.

    Only events that `graph` knows.
    """
    mainline = Mainline(graph, power_levels)
    keys = [
        (-mainline.position(number), event.origin_server_ts, graph.event_ids[number], number)
        for number in numbers
        if (event := graph.events[number]) is not None
    ]
    keys.sort()
    return [key[3] for key in keys]


def _power_levels_of(graph: AuthGraph, number: int) -> int | None:
    """The power levels event among the auth events of an event."""
    for auth_event in graph.auth_events(number):
        event = graph.events[auth_event]
        if event is not None and event.type == "m.room.power_levels" and event.state_key == "":
            return auth_event
    return None
