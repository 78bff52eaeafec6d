"""The graph that `auth_events` make, as far as one resolution looks at it.

Every walk here is a loop with a set of what it has seen: chains may be 100,000 events deep and, in
room versions 1 and 2 where senders choose event ids, may run in circles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from federation.events import Event


class AuthGraph:
    """The events of one room, numbered from 0 in the order in which they are first looked at.

    An event that is not in `events`, or is in another room, has a number but is None, and nothing
    is known of its auth events.

    Attributes:
        event_ids, events: by number.
    """

    __slots__ = ("_auth_events", "_known", "_numbers", "_room_id", "event_ids", "events")

    def __init__(self, events: Mapping[str, Event], room_id: str | None) -> None:
        """
        Args:
            events: event id to event; may load them as they are asked for.
            room_id: the room; None takes events of any room.
        """
        self._known = events
        self._room_id = room_id
        self._numbers: dict[str, int] = {}
        self._auth_events: list[list[int] | None] = []
        self.event_ids: list[str] = []
        self.events: list[Event | None] = []

    def number(self, event_id: str) -> int:
        """The number of an event."""
        number = self._numbers.get(event_id)
        if number is None:
            event = self._known.get(event_id)
            if event is not None and event.room_id != self._room_id and self._room_id is not None:
                event = None
            number = len(self.event_ids)
            self._numbers[event_id] = number
            self.event_ids.append(event_id)
            self.events.append(event)
            self._auth_events.append(None)
        return number

    def numbers(self, event_ids: Iterable[str]) -> list[int]:
        """The numbers of several events."""
        return [self.number(event_id) for event_id in event_ids]

    def event(self, event_id: str) -> Event | None:
        """The event called `event_id`."""
        return self.events[self.number(event_id)]

    def auth_events(self, number: int) -> Sequence[int]:
        """The auth events of an event; the create event among them in every room version.

        Version 12 leaves the create event out of `auth_events` because the room id names it; it
        authorises the event all the same.
        """
        found = self._auth_events[number]
        if found is None:
            event = self.events[number]
            found = [] if event is None else self.numbers(auth_event_ids(event))
            self._auth_events[number] = found
        return found

    def chain(
        self, roots: Iterable[int], is_common: Callable[[int], bool] | None = None
    ) -> set[int]:
        """`roots` and their auth chains.

        Args:
            roots: numbers of events.
            is_common: events at which to turn back. What it is true for is left out.
        """
        auth_events = self.auth_events
        seen = {root for root in roots if is_common is None or not is_common(root)}
        stack = list(seen)
        while stack:
            for number in auth_events(stack.pop()):
                if number not in seen and (is_common is None or not is_common(number)):
                    seen.add(number)
                    stack.append(number)
        return seen


def auth_event_ids(event: Event) -> tuple[str, ...]:
    """The ids of the events that authorise `event`; the create event in every room version."""
    if event.room_version.room_id_is_create_hash and event.type != "m.room.create":
        return (*event.auth_event_ids, "$" + event.room_id[1:])
    return event.auth_event_ids


def auth_difference(
    graph: AuthGraph, state_sets: Sequence[Collection[int]], is_common: Callable[[int], bool]
) -> set[int]:
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
        is_common: whether an event is unconflicted state or in the auth chain of some.
    """
    chains = [graph.chain(state_set, is_common) for state_set in state_sets]
    return set().union(*chains) - chains[0].intersection(*chains[1:])


def conflicted_state_subgraph(graph: AuthGraph, conflicted: Collection[int]) -> set[int]:
    """The conflicted state subgraph (version 12): all that is on a path between two of them.

    Such an event is in the auth chain of a conflicted event and has a conflicted event in its own.
    The conflicted events themselves are included.
    """
    cited_by: dict[int, list[int]] = {}
    for number in graph.chain(conflicted):
        for cited in graph.auth_events(number):
            cited_by.setdefault(cited, []).append(number)
    subgraph = set(conflicted)
    stack = list(subgraph)
    while stack:
        for number in cited_by.get(stack.pop(), ()):
            if number not in subgraph:
                subgraph.add(number)
                stack.append(number)
    return subgraph
