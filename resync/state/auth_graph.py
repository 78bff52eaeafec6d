"""The graph that `auth_events` make, as far as one resolution looks at it.

Every walk here is a loop with a set of what it has seen: chains may be 100,000 events deep and, in
room versions 1 and 2 where senders choose event ids, may run in circles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Protocol

from federation.events import Event
from federation.room_versions import RoomVersion


class EventSource(Protocol):
    """Where events come from. Every `Mapping` from event ids to events is one."""

    def get(self, event_id: str, /) -> Event | None:
        """The event called `event_id`, None if there is none."""


class LoadedEvents:
    """Events that are asked for once and then remembered."""

    def __init__(self, events: Mapping[str, Event]) -> None:
        self._source = events
        self._events: dict[str, Event | None] = {}

    def get(self, event_id: str, /) -> Event | None:
        """The event called `event_id`, None if there is none."""
        try:
            return self._events[event_id]
        except KeyError:
            event = self._events[event_id] = self._source.get(event_id)
            return event


class AuthGraph:
    """The events of one room and what authorises them.

    An event that is not in `events`, or is in another room, is unknown: it is None, and nothing is
    known of its auth events.
    """

    __slots__ = ("_create", "_events", "_room_id")

    def __init__(self, version: RoomVersion, events: EventSource, room_id: str | None) -> None:
        """
        Args:
            version: the rules of the room.
            events: the events; asked for the same one again and again.
            room_id: the room; None takes events of any room.
        """
        self._events = events
        self._room_id = room_id
        # Version 12 leaves the create event out of `auth_events` because the room id names it; it
        # authorises every event all the same.
        self._create = ""
        if version.room_id_is_create_hash and room_id is not None:
            self._create = "$" + room_id[1:]

    @property
    def room_id(self) -> str | None:
        """The room; None for any."""
        return self._room_id

    def event(self, event_id: str) -> Event | None:
        """The event called `event_id`, None if it is unknown."""
        event = self._events.get(event_id)
        if event is not None and event.room_id != self._room_id and self._room_id is not None:
            return None
        return event

    def auth_event_ids(self, event: Event) -> tuple[str, ...]:
        """The ids of an event's auth events; the create event among them in every version."""
        if self._create and event.type != "m.room.create":
            return (*event.auth_event_ids, self._create)
        return event.auth_event_ids

    def chain(
        self, roots: Iterable[str], common: Container[str] = frozenset()
    ) -> dict[str, Event | None]:
        """`roots` and their auth chains, by event id; None for those that are unknown.

        Args:
            roots: event ids.
            common: events at which to turn back. They are left out.
        """
        # A dict and no set: its order is that of the walk, so that later loops touch events in the
        # order in which they were made, near each other in memory: large rooms take less time.
        seen: dict[str, Event | None] = {}
        load, create = self.event, self._create
        stack = [root for root in roots if root not in common]
        while stack:
            event_id = stack.pop()
            if event_id in seen:
                continue
            event = seen[event_id] = load(event_id)
            if event is None:
                continue
            for cited in event.auth_event_ids:
                if cited not in seen and cited not in common:
                    stack.append(cited)  # noqa: PERF401 (this loop is faster: lists are tiny)
            if create and create not in seen and create not in common:
                stack.append(create)
        return seen


def auth_difference(
    graph: AuthGraph, state_sets: Sequence[Collection[str]], common: Container[str]
) -> dict[str, Event | None]:
    """The auth difference: "every event that doesn't appear in every auth chain".

    The full auth chain of a state is that of its conflicted events and that of the unconflicted
    ones; the latter is in every state's. So the walk starts at the conflicted events and turns
    back where it meets what the unconflicted ones reach.

    A state's events count as part of its full auth chain, as they do on deployed servers. The
    text, read literally, would add unconflicted events that only some states' events cite; they
    would be authorised again, for nothing.

    Args:
        graph: the events.
        state_sets: for each state its events under the conflicted keys.
        common: the events that are unconflicted state or in the auth chain of some.

    Returns:
        Events by id; None for those that are unknown.
    """
    chains = [graph.chain(state_set, common) for state_set in state_sets]
    appearances: Counter[str] = Counter()
    for chain in chains:
        appearances.update(chain.keys())
    return {
        event_id: event
        for chain in chains
        for event_id, event in chain.items()
        if appearances[event_id] < len(chains)
    }


def conflicted_state_subgraph(
    graph: AuthGraph, conflicted: Collection[str]
) -> dict[str, Event | None]:
    """The conflicted state subgraph (version 12): all that is on a path between two of them.

    Such an event is in the auth chain of a conflicted event and has a conflicted event in its own.
    The conflicted events themselves are included.

    Returns:
        Events by id; None for those that are unknown.
    """
    chain = {event_id: graph.event(event_id) for event_id in conflicted}
    cited_by: dict[str, list[str]] = {}
    stack = list(chain)
    while stack:
        event_id = stack.pop()
        event = chain[event_id]
        if event is None:
            continue
        for cited in graph.auth_event_ids(event):
            if cited in cited_by:
                cited_by[cited].append(event_id)
            else:
                cited_by[cited] = [event_id]
                if cited not in chain:
                    chain[cited] = graph.event(cited)
                    stack.append(cited)
    subgraph = {event_id: chain[event_id] for event_id in conflicted}
    stack = list(subgraph)
    while stack:
        for event_id in cited_by.get(stack.pop(), ()):
            if event_id not in subgraph:
                subgraph[event_id] = chain[event_id]
                stack.append(event_id)
    return subgraph
