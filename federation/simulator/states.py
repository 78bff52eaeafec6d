"""Room states as chains of changes.

Each event's state is the state before it and at most a few changes, so a room of N members with a
history of M events costs N + M, not N × M, and the state at any event can still be told.
"""

from __future__ import annotations

from collections.abc import Mapping

from federation.events import StateKey

State = dict[StateKey, str]
"""A whole room state: event ids by state key."""


class StateNode:
    """One state of a room: its parent's, and what changed. Never altered once made.

    Attributes:
        parent: the state this one differs from; None for the root, whose changes are all of it.
        changes: the entries that differ; None as a value: the entry is gone.
        level: distance from the root.
    """

    __slots__ = ("_snapshot", "changes", "level", "parent")

    def __init__(
        self, parent: StateNode | None, changes: tuple[tuple[StateKey, str | None], ...]
    ) -> None:
        self.parent = parent
        self.changes = changes
        self.level: int = 0 if parent is None else parent.level + 1
        self._snapshot: State | None = None

    def materialise(self) -> State:
        """The whole state, as a new dict."""
        path: list[StateNode] = []
        node: StateNode | None = self
        while node is not None and node._snapshot is None:
            path.append(node)
            node = node.parent
        state: State = {} if node is None or node._snapshot is None else dict(node._snapshot)
        for step in reversed(path):
            apply(state, step.changes)
        if len(path) > len(state) + 256:
            # A long walk is paid once: the copy costs less than the walk did.
            self._snapshot = dict(state)
        return state

    def child(self, changes: Mapping[StateKey, str | None]) -> StateNode:
        """This state with `changes` made; the same state if there are none."""
        return StateNode(self, tuple(changes.items())) if changes else self


def apply(state: State, changes: tuple[tuple[StateKey, str | None], ...]) -> None:
    """Make `changes` to `state`, in place."""
    for key, event_id in changes:
        if event_id is None:
            state.pop(key, None)
        else:
            state[key] = event_id


def keys_that_may_differ(left: StateNode, right: StateNode) -> dict[StateKey, None]:
    """The keys changed since the last state that `left` and `right` have in common."""
    keys: dict[StateKey, None] = {}
    one: StateNode | None = left
    other: StateNode | None = right
    while one is not other:
        if other is None or (one is not None and one.level >= other.level):
            assert one is not None
            keys.update(dict.fromkeys(key for key, _ in one.changes))
            one = one.parent
        else:
            keys.update(dict.fromkeys(key for key, _ in other.changes))
            other = other.parent
    return keys


class StateCursor:
    """Whole states of the few nodes in use, moved along from parent to child instead of copied."""

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._states: dict[StateNode, State] = {}

    def at(self, node: StateNode) -> State:
        """The whole state at `node`; valid until the next call, not to be changed."""
        state = self._states.pop(node, None)
        if state is None and node.parent is not None:
            state = self._states.pop(node.parent, None)
            if state is not None:
                apply(state, node.changes)
        if state is None:
            state = node.materialise()
            while len(self._states) >= self._size:
                del self._states[next(iter(self._states))]
        self._states[node] = state
        return state
