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
        events: the entries that have been looked up or accepted, as `get` gives them.
    """

    __slots__ = ("_graph", "_initial", "_rejected", "accepted", "events")

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
        self.events: dict[Key, Event | None] = {}
        self.accepted: dict[Key, str] = {}

    def get(self, key: Key) -> Event | None:
        """The event of an entry, None if there is none that may authorise others."""
        try:
            return self.events[key]
        except KeyError:
            event_id = None if self._initial is None else self._initial.get(key)
            event = None
            if event_id is not None and event_id not in self._rejected:
                event = self._graph.event(event_id)
            self.events[key] = event
            return event

    def accept(self, key: Key, event: Event) -> None:
        """Set an entry."""
        self.events[key] = event
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

    __slots__ = ("_event", "_graph", "_known", "_of_auth_events", "_rejected", "_resolved")

    def __init__(
        self, graph: AuthGraph, resolved: ResolvedState, event: Event, rejected: Container[str]
    ) -> None:
        self._graph = graph
        self._resolved = resolved
        self._known = resolved.events
        self._rejected = rejected
        self._of_auth_events: dict[Key, Event] | None = None
        self._event = event

    def get(self, key: Key) -> Event | None:
        try:
            event = self._known[key]
        except KeyError:
            event = self._resolved.get(key)
        if event is not None:
            return event
        if self._of_auth_events is None:
            self._of_auth_events = self._load_auth_events()
        return self._of_auth_events.get(key)

    def _load_auth_events(self) -> dict[Key, Event]:
        found: dict[Key, Event] = {}
        for event_id in self._graph.auth_event_ids(self._event):
            event = self._graph.event(event_id)
            if event is not None and event_id not in self._rejected:
                state_key = event.state_key
                if state_key is not None:
                    found[event.type, state_key] = event
        return found


def iterative_auth_checks(
    graph: AuthGraph, ordered: Iterable[Event], resolved: ResolvedState, rejected: Container[str]
) -> None:
    """Apply state events to `resolved`, in order, each if the authorisation rules allow it.

    Rejected events are not applied. The specification would let in those that failed against the
    state at the event and pass here ("Rejected events"); no deployed server does, because a
    rejected event that became state would have to be un-rejected everywhere.

    Args:
        graph: the events.
        ordered: the events to apply.
        resolved: the state so far. Changed.
        rejected: ids of rejected events.
    """
    for event in ordered:
        if event.state_key is None or event.event_id in rejected:
            continue
        try:
            check_state_dependent_rules(event, _AuthState(graph, resolved, event, rejected))
        except NotAuthorised:
            continue
        resolved.accept((event.type, event.state_key), event)
