"""A state that many resolutions share, with what they need to know of its auth chain."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence, Set
from typing import cast

from resync.state.conflicts import Key


class IndexedState(Mapping[Key, str]):
    """A state, `(type, state_key)` to event id, and which events cite which in its auth chain.

    `resync.state.resolve_deltas` asks whether an event is in the auth chain of what its states
    have in common. Without this index it walks through the whole common state for the answer, each
    time; with it, it looks at little more than the event itself. The index is built when it is
    first needed, in time linear in the state and its auth chain, and follows `update`.
    """

    def __init__(self, state: Mapping[Key, str], auth_events: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            state: the state. Copied.
            auth_events: event id to the ids of its auth events, for the events of every state that
                this one will hold and for their auth chains. An event that is not there has none.
        """
        self._state = dict(state)
        self._event_ids = set(self._state.values())
        self._auth_events = auth_events
        self._cited_by: dict[str, list[str]] | None = None
        self._indexed: set[str] = set()

    def __getitem__(self, key: Key) -> str:
        return self._state[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def update(self, changes: Mapping[Key, str | None]) -> None:
        """Change the state; None removes an entry. The cost is that of the changes."""
        for key, event_id in changes.items():
            former = self._state.pop(key, None)
            if former is not None:
                self._event_ids.discard(former)
            if event_id is not None:
                self._state[key] = event_id
                self._event_ids.add(event_id)
        if self._cited_by is not None:
            self._index(event_id for event_id in changes.values() if event_id is not None)

    def common_chain(self, differing: Collection[Key]) -> Container[str]:
        """The events of this state without some entries, and of their auth chains.

        Args:
            differing: keys of the entries to leave out.

        Returns:
            Something to ask about event ids, until the state changes. It remembers its answers.
        """
        if self._cited_by is None:
            self._cited_by = {}
            self._index(self._event_ids)
        left_out = {self._state[key] for key in differing if key in self._state}
        return _CommonChain(self._event_ids, left_out, self._cited_by)

    def _index(self, event_ids: Iterator[str] | Collection[str]) -> None:
        """Add events and their auth chains. What was added once stays: it still cites."""
        assert self._cited_by is not None
        stack = [event_id for event_id in event_ids if event_id not in self._indexed]
        self._indexed.update(stack)
        while stack:
            event_id = stack.pop()
            for cited in self._auth_events.get(event_id, ()):
                self._cited_by.setdefault(cited, []).append(event_id)
                if cited not in self._indexed:
                    self._indexed.add(cited)
                    stack.append(cited)


class _CommonChain:
    """The events of a state without some of them, and of their auth chains."""

    def __init__(
        self, event_ids: Set[str], left_out: Set[str], cited_by: Mapping[str, Sequence[str]]
    ) -> None:
        self._event_ids = event_ids
        self._left_out = left_out
        self._cited_by = cited_by
        self._common: set[str] = set()
        self._not_common: set[str] = set()

    def __contains__(self, event_id: object) -> bool:
        event_id = cast(str, event_id)
        if self._is_known(event_id):
            return True
        if event_id in self._not_common:
            return False
        # From the event up to those that cite it, until one is of the common state.
        met_through = {event_id: event_id}
        stack = [event_id]
        while stack:
            current = stack.pop()
            for citing in self._cited_by.get(current, ()):
                if citing in met_through or citing in self._not_common:
                    continue
                if self._is_known(citing):
                    # All on the way from the event to this one are in its auth chain.
                    while current not in self._common:
                        self._common.add(current)
                        current = met_through[current]
                    return True
                met_through[citing] = current
                stack.append(citing)
        self._not_common.update(met_through)
        return False

    def _is_known(self, event_id: str) -> bool:
        return event_id in self._common or (
            event_id in self._event_ids and event_id not in self._left_out
        )
