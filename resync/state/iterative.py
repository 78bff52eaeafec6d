"""The iterative auth checks algorithm. Source: room version 2, "Iterative auth checks"."""

from __future__ import annotations

from collections.abc import Container, Iterable

from federation.events import Event
from resync.auth import NotAuthorised
from resync.auth.rules import check_state_dependent_rules
from resync.state.auth_graph import AuthGraph
from resync.state.conflicts import Key, Unconflicted


class ResolvedState:
    """A room state under construction: what has been accepted, over an initial state.

    Attributes:
        accepted: the event ids that were accepted, by key.
    """

    __slots__ = ("_events", "_graph", "_initial", "_rejected", "accepted")

    def __init__(
        self, graph: AuthGraph, initial: Unconflicted | None, rejected: Container[str]
    ) -> None:
        """
        Args:
            graph: the events.
            initial: the initial state; None for the empty one.
            rejected: ids of rejected events, which authorise nothing.
        """
        self._graph = graph
        self._initial = initial
        self._rejected = rejected
        self._events: dict[Key, Event | None] = {}
        self.accepted: dict[Key, str] = {}

    def get(self, key: Key) -> Event | None:
        """The event of an entry, None if there is none that may authorise others."""
        try:
            return self._events[key]
        except KeyError:
            pass
        event_id = None if self._initial is None else self._initial.get(key)
        event = None
        if event_id is not None and event_id not in self._rejected:
            event = self._graph.event(event_id)
        self._events[key] = event
        return event

    def accept(self, key: Key, event: Event) -> None:
        """Set an entry."""
        self._events[key] = event
        self.accepted[key] = event.event_id

    def event_id(self, key: Key) -> str | None:
        """The event id of an entry, None if there is none."""
        event_id = self.accepted.get(key)
        if event_id is None and self._initial is not None:
            return self._initial.get(key)
        return event_id


class _AuthState:
    """The state to check one event against: an `AuthState`.

    The resolved state and, for what it does not have, "the appropriate state event from the
    event's auth_events [...] if the auth event is not rejected".
    """

    __slots__ = ("_graph", "_number", "_of_auth_events", "_rejected", "_resolved")

    def __init__(
        self, graph: AuthGraph, resolved: ResolvedState, number: int, rejected: Container[str]
    ) -> None:
        self._graph = graph
        self._resolved = resolved
        self._number = number
        self._rejected = rejected
        self._of_auth_events: dict[Key, Event] | None = None

    def get(self, key: Key) -> Event | None:
        event = self._resolved.get(key)
        if event is not None:
            return event
        if self._of_auth_events is None:
            self._of_auth_events = self._load_auth_events()
        return self._of_auth_events.get(key)

    def _load_auth_events(self) -> dict[Key, Event]:
        events = self._graph.events
        found = (events[number] for number in self._graph.auth_events(self._number))
        return {
            (event.type, event.state_key): event
            for event in found
            if event is not None
            and event.state_key is not None
            and event.event_id not in self._rejected
        }


def iterative_auth_checks(
    graph: AuthGraph, ordered: Iterable[int], resolved: ResolvedState, rejected: Container[str]
) -> None:
    """Apply state events to `resolved`, in order, each if the authorisation rules allow it.

    Rejected events are not applied. The specification would let in those that failed against the
    state at the event and pass here ("Rejected events"); no deployed server does, because a
    rejected event that became state would have to be un-rejected everywhere.

    Args:
        graph: the events.
        ordered: numbers of the events to apply.
        resolved: the state so far. Changed.
        rejected: ids of rejected events.
    """
    for number in ordered:
        event = graph.events[number]
        if event is None or event.state_key is None or event.event_id in rejected:
            continue
        try:
            check_state_dependent_rules(event, _AuthState(graph, resolved, number, rejected))
        except NotAuthorised:
            continue
        resolved.accept((event.type, event.state_key), event)
