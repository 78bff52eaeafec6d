"""The history of a simulated room: its events as a DAG, and the state at each.

Nothing is checked against the authorisation rules: the history is what whoever builds it says, and
that is the truth that tests compare with.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from federation.errors import FederationError
from federation.events import Event, StateKey
from federation.identifiers import domain_of
from federation.room_versions import RoomVersion
from federation.simulator.built_event import BuiltEvent
from federation.simulator.states import State, StateCursor, StateNode, keys_that_may_differ

CREATE = StateKey("m.room.create", "")
POWER_LEVELS = StateKey("m.room.power_levels", "")
JOIN_RULES = StateKey("m.room.join_rules", "")


class ConflictingForks(FederationError):
    """Forks that changed the same entry meet, and no resolved state was given."""


class UnknownReference(FederationError):
    """An event names a `prev_events` or `auth_events` entry that the room does not have."""


class RoomHistory:
    """A room's events, and its state before and after each.

    Attributes:
        room_id: empty until the create event of a version 12 room is there.
        version: the room's version.
        events: every event by id, in the order they were inserted.
        forward_extremities: ids of the events that nothing accepted has followed.
    """

    def __init__(self, room_id: str, version: RoomVersion) -> None:
        self.room_id = room_id
        self.version = version
        self.events: OrderedDict[str, BuiltEvent] = OrderedDict()
        self.forward_extremities: dict[str, None] = {}
        self._cursor = StateCursor()
        self._members_by_server: dict[str, dict[str, None]] = {}
        self._latest: tuple[tuple[str, ...], StateNode] | None = None

    def state_before(self, event_id: str) -> State:
        """The room's state before the event, as event ids by state key."""
        return self.events[event_id].before.materialise()

    def state_after(self, event_id: str) -> State:
        """The room's state after the event, as event ids by state key."""
        return self.events[event_id].after.materialise()

    def current_state(self) -> State:
        """The room's state after all of its forward extremities."""
        return self._current().materialise()

    def state_event(self, key: tuple[str, str]) -> BuiltEvent | None:
        """The event that sets `key` in the current state."""
        event_id = self._cursor.at(self._current()).get(StateKey(*key))
        return None if event_id is None else self.events[event_id]

    def content_of(self, key: tuple[str, str]) -> dict[str, Any] | None:
        """The content that `key` has in the current state."""
        event = self.state_event(key)
        if event is None:
            return None
        content: dict[str, Any] = self.pdu(event.event_id)["content"]
        return content

    def membership(self, user_id: str) -> str | None:
        """The current membership of `user_id`."""
        event = self.state_event(("m.room.member", user_id))
        return None if event is None else event.membership

    def pdu(self, event_id: str) -> dict[str, Any]:
        """The PDU, parsed anew."""
        pdu: dict[str, Any] = json.loads(self.events[event_id].json)
        return pdu

    def event(self, event_id: str) -> Event:
        """The event as the rest of the project holds it."""
        built = self.events[event_id]
        return Event.from_pdu(
            self.pdu(event_id),
            self.version.identifier,
            event_id=event_id,
            json_text=built.text,
        )

    def auth_chain(self, event_ids: Iterable[str]) -> list[str]:
        """Ids of the auth events of `event_ids`, of theirs, and so on.

        An event of `event_ids` is in it only if another of them leads to it.
        """
        events = self.events
        found: dict[str, None] = {}
        todo = list(event_ids)
        while todo:
            event = events.get(todo.pop())
            if event is not None:
                for auth_id in event.auth_event_ids:
                    if auth_id not in found:
                        found[auth_id] = None
                        todo.append(auth_id)
        return [event_id for event_id in found if event_id in events]

    def joined_servers(self, state: Iterable[str]) -> list[str]:
        """The servers with a joined member in a state, given as its event ids."""
        events = self.events
        servers = {
            domain_of(event.state_key or "")
            for event in (events[event_id] for event_id in state)
            if event.membership == "join"
        }
        return sorted(servers)

    def joined_members_of(self, server_name: str) -> Iterable[BuiltEvent]:
        """The join events of the members that `server_name` has in the current state."""
        state = self._cursor.at(self._current())
        for user_id in self._members_by_server.get(server_name, ()):
            event_id = state.get(StateKey("m.room.member", user_id))
            if event_id is not None and self.events[event_id].membership == "join":
                yield self.events[event_id]

    def insert(self, event: BuiltEvent) -> None:
        """Put an event into the history; unless rejected it becomes a forward extremity."""
        self.events[event.event_id] = event
        if not event.rejected:
            for event_id in event.prev_event_ids:
                self.forward_extremities.pop(event_id, None)
            self.forward_extremities[event.event_id] = None
            if event.membership == "join" and event.state_key is not None:
                members = self._members_by_server.setdefault(domain_of(event.state_key), {})
                members[event.state_key] = None

    def entries(self, node: StateNode, keys: Iterable[StateKey]) -> list[str | None]:
        """The event ids that a state has for `keys`, in their order."""
        state = self._cursor.at(node)
        return [state.get(key) for key in keys]

    def _current(self) -> StateNode:
        extremities = tuple(self.forward_extremities)
        if self._latest is None or self._latest[0] != extremities:
            self._latest = (extremities, self.node_before(extremities, None))
        return self._latest[1]

    def node_before(
        self, prev_event_ids: Sequence[str], given: Mapping[tuple[str, str], str] | None
    ) -> StateNode:
        """The state before an event that follows `prev_event_ids`; `given`: the resolved one.

        Raises:
            ConflictingForks: both of two forks changed one entry, and nothing is given.
            UnknownReference: an id is unknown, and nothing is given.
        """
        prev_events = [self.events[known] for known in prev_event_ids if known in self.events]
        if given is None and len(prev_events) < len(prev_event_ids):
            unknown = [event_id for event_id in prev_event_ids if event_id not in self.events]
            raise UnknownReference(f"{self.room_id} has no {', '.join(unknown)}")
        if not prev_events:
            return StateNode(None, tuple((StateKey(*key), i) for key, i in (given or {}).items()))
        merged = prev_events[0].after
        if given is not None:
            return self._difference(merged, given)
        for event in prev_events[1:]:
            merged = self._merge(merged, event.after)
        return merged

    def _difference(self, node: StateNode, given: Mapping[tuple[str, str], str]) -> StateNode:
        state = self._cursor.at(node)
        wanted = {StateKey(*key): event_id for key, event_id in given.items()}
        changes: dict[StateKey, str | None] = {
            key: event_id for key, event_id in wanted.items() if state.get(key) != event_id
        }
        changes.update((key, None) for key in state if key not in wanted)
        return node.child(changes)

    def _merge(self, left: StateNode, right: StateNode) -> StateNode:
        """The union of two states of which no entry was changed on both sides."""
        if left is right:
            return left
        keys = keys_that_may_differ(left, right)
        state = self._cursor.at(right)
        theirs = {key: state.get(key) for key in keys}
        ours = self._cursor.at(left)
        changes: dict[StateKey, str | None] = {}
        for key, event_id in theirs.items():
            mine = ours.get(key)
            if event_id == mine or event_id is None or self._follows(mine, event_id):
                continue
            if mine is not None and not self._follows(event_id, mine):
                raise ConflictingForks(
                    f"both forks of {self.room_id} changed {tuple(key)}: pass state_before"
                )
            changes[key] = event_id
        return left.child(changes)

    def _follows(self, later: str | None, earlier: str) -> bool:
        """Whether `later` took its entry over from `earlier`, directly or not."""
        while later is not None:
            if later == earlier:
                return True
            later = self.events[later].replaces
        return False
