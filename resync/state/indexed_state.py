"""A state that many resolutions share, with what they need to know of its auth chain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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

    def common_chain(self, differing: Collection[Key]) -> Callable[[str], bool]:
        """A test for being in this state without some entries, or in its auth chain.

        Args:
            differing: keys of the entries to leave out.

        Returns:
            A function of an event id. It remembers its answers.
        """
        if self._cited_by is None:
            self._cited_by = {}
            self._index(self._event_ids)
        cited_by = self._cited_by
        left_out = {self._state[key] for key in differing if key in self._state}
        event_ids = self._event_ids
        common: set[str] = set()
        not_common: set[str] = set()

        def is_in_state(event_id: str) -> bool:
            return event_id in common or (event_id in event_ids and event_id not in left_out)

        def is_common(event_id: str) -> bool:
            # From the event up to those that cite it, until one is of the common state.
            if is_in_state(event_id):
                return True
            if event_id in not_common:
                return False
            met_through = {event_id: event_id}
            stack = [event_id]
            while stack:
                current = stack.pop()
                for citing in cited_by.get(current, ()):
                    if citing in met_through or citing in not_common:
                        continue
                    if is_in_state(citing):
                        # All on the way from the event to this one are in its auth chain.
                        while current not in common:
                            common.add(current)
                            current = met_through[current]
                        return True
                    met_through[citing] = current
                    stack.append(citing)
            not_common.update(met_through)
            return False

        return is_common

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
