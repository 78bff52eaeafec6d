"""The states of one room during a walk, kept as differences from one base state. Pure.

A room of N members whose walk meets K different states costs N plus the changes, not K times N:
the first full state is the base, every other is a small mapping of what differs from it. State
groups are planned alongside in the same way, as deltas on the group of the state they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from federation.events import StateKey
from resync.state import IndexedState
from resync.state.batch import InProcessResolver, Resolver

Changes = Mapping[StateKey, str | None]
"""What differs from the base: an event id, or None where the entry is absent."""

LoadAuthEdges = Callable[[Collection[str]], Mapping[str, Sequence[str]]]
"""Event ids to the auth events of those and of all their auth ancestors."""

NO_CHANGES: Changes = MappingProxyType({})


@dataclass(slots=True, eq=False)
class PlannedGroup:
    """A state group that is stored, or will be with the batch that needs it.

    Attributes:
        group_id: None until it is stored.
        event_id: the event it is planned for.
        prev: the group that `delta` builds on; None for a group that holds the full state.
        delta: what the group adds or overwrites.
    """

    event_id: str
    prev: PlannedGroup | None
    delta: Mapping[StateKey, str]
    group_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoomState:
    """A state of the room: what differs from the base, and the group it is stored in."""

    changes: Changes
    group: PlannedGroup


@dataclass(slots=True)
class RoomStates:
    """The states of one walk.

    Attributes:
        base: the first full state that was met; never changed afterwards.
        new_groups: groups that have been planned and not stored, in the order to store them.
        resolver: what resolves them.
    """

    base: dict[StateKey, str] = field(default_factory=dict)
    new_groups: list[PlannedGroup] = field(default_factory=list)
    resolver: Resolver = field(default_factory=InProcessResolver)
    _base_state: RoomState | None = None
    _indexed_base: IndexedState | None = None

    def adopt(
        self, full: dict[StateKey, str], event_id: str, *, group_id: int | None = None
    ) -> RoomState:
        """The state whose entries are `full`, which becomes the base if there is none yet.

        Args:
            full: every entry of the state. Not copied: the caller lets go of it.
            event_id: the event after which it is the state.
            group_id: its state group where it is stored already.
        """
        if self._base_state is None:
            self.base = full
            group = self._plan(event_id, None, full, group_id)
            self._base_state = RoomState(NO_CHANGES, group)
            return self._base_state
        changes: dict[StateKey, str | None] = dict(full.items() - self.base.items())
        changes.update(dict.fromkeys(self.base.keys() - full.keys()))
        if group_id is not None:
            return RoomState(changes, self._plan(event_id, None, full, group_id))
        return self._derive(changes, event_id, self._base_state)

    def value(self, state: RoomState, key: StateKey) -> str | None:
        """The event id of the entry `key` in `state`."""
        if key in state.changes:
            return state.changes[key]
        return self.base.get(key)

    def with_event(self, state: RoomState, key: StateKey, event_id: str) -> RoomState:
        """The state after an accepted state event, given the state before it."""
        changes = {**state.changes, key: event_id}
        return RoomState(changes, self._plan(event_id, state.group, {key: event_id}, None))

    def merged(self, changes: Changes, event_id: str, parent: RoomState) -> RoomState:
        """The state before `event_id`, a resolution: `changes` to the base.

        `parent`, one of the states that were resolved, is what the state group builds on.
        """
        if changes == parent.changes:
            return parent
        return self._derive(changes, event_id, parent)

    def full(self, state: RoomState) -> dict[StateKey, str]:
        """Every entry of `state`."""
        entries: dict[StateKey, str] = dict(self.base)
        for key, event_id in state.changes.items():
            if event_id is None:
                entries.pop(key, None)
            else:
                entries[key] = event_id
        return entries

    def indexed_base(self, load_auth_edges: LoadAuthEdges) -> IndexedState:
        """The base with the index that makes resolving over differences cheap.

        `load_auth_edges` gives the auth graph beneath the base; it is asked once.
        """
        if self._indexed_base is None:
            base = cast(Mapping[tuple[str, str], str], self.base)
            self._indexed_base = IndexedState(base, load_auth_edges(self.base.values()))
        return self._indexed_base

    def take_new_groups(self) -> list[PlannedGroup]:
        """The groups to store now; they are no longer planned afterwards."""
        groups, self.new_groups = self.new_groups, []
        return groups

    def _derive(self, changes: Changes, event_id: str, parent: RoomState) -> RoomState:
        delta: dict[StateKey, str] = {}
        for key in changes.keys() | parent.changes.keys():
            value = changes[key] if key in changes else self.base.get(key)
            if value == self.value(parent, key):
                continue
            if value is None:
                # A delta cannot take an entry away, so the group has to hold the full state.
                group = self._plan(
                    event_id, None, self.full(RoomState(changes, parent.group)), None
                )
                return RoomState(changes, group)
            delta[key] = value
        return RoomState(changes, self._plan(event_id, parent.group, delta, None))

    def _plan(
        self,
        event_id: str,
        prev: PlannedGroup | None,
        delta: Mapping[StateKey, str],
        group_id: int | None,
    ) -> PlannedGroup:
        if group_id is not None:
            return PlannedGroup(event_id, None, {}, group_id)
        group = PlannedGroup(event_id, prev, delta)
        self.new_groups.append(group)
        return group
