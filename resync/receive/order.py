"""The order in which a batch of events is taken in. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence

from federation.events import Event

NO_PREV_EVENTS = "it has no prev_events"
"""Why an event is refused that is not the room's create event and begins a room all the same."""


def in_graph_order(events: Sequence[Event]) -> list[Event]:
    """`events` with parents before children, otherwise by depth.

    Depth alone is a claim of the sender. Events of a cycle, which rooms of versions 1 and 2 can
    be made to have, come last, by depth.
    """
    by_id = {event.event_id: event for event in events}
    waiting: dict[str, int] = {}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for event in by_id.values():
        parents = {prev_id for prev_id in event.prev_event_ids if prev_id in by_id}
        parents.discard(event.event_id)
        waiting[event.event_id] = len(parents)
        for prev_id in parents:
            children[prev_id].append(event.event_id)
    ready = [_rank(by_id[event_id]) for event_id, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[Event] = []
    while ready:
        _, event_id = heapq.heappop(ready)
        ordered.append(by_id[event_id])
        del waiting[event_id]
        for child_id in children[event_id]:
            waiting[child_id] -= 1
            if waiting[child_id] == 0:
                heapq.heappush(ready, _rank(by_id[child_id]))
    cyclic = sorted((by_id[event_id] for event_id in waiting), key=_rank)
    return ordered + cyclic


def missing_parents(events: Sequence[Event], known: Collection[str]) -> dict[str, list[str]]:
    """The parents that are neither in the batch nor `known`, each with the events that name it."""
    own = {event.event_id for event in events}
    missing: dict[str, list[str]] = {}
    for event in events:
        for prev_id in event.prev_event_ids:
            if prev_id not in own and prev_id not in known:
                missing.setdefault(prev_id, []).append(event.event_id)
    return missing


def without_descendants(
    events: Sequence[Event], excluded: Collection[str]
) -> tuple[list[Event], list[Event]]:
    """Splits events, in graph order, into those that do not depend on `excluded` and the others.

    Args:
        excluded: ids of events, of the batch or not; what has one as a parent depends on it.
    """
    held = set(excluded)
    free: list[Event] = []
    dependent: list[Event] = []
    for event in events:
        if event.event_id in held or not held.isdisjoint(event.prev_event_ids):
            held.add(event.event_id)
            dependent.append(event)
        else:
            free.append(event)
    return free, dependent


def _rank(event: Event) -> tuple[int, str]:
    return event.depth, event.event_id
