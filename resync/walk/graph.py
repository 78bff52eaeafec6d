"""The order in which a room's partial events are walked. Pure; no recursion.

An event can be walked when each of its `prev_events` either was walked before, has full state in
the database, or is a gap (an event that we do not have) whose state has been fetched.
Source: faster joins, "Fixing the approximation with a resync"; design, section 3, step 3.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from storage.partial_state import PartialEvent


class WalkOrder:
    """Hands out partial events so that parents come before children, oldest first."""

    def __init__(self, events: Sequence[PartialEvent], gaps: Collection[str]) -> None:
        """`gaps`: those `prev_events` whose state has to be fetched before they can be used."""
        self._events = {event.event_id: event for event in events}
        self._blockers: dict[str, set[str]] = {}
        self._blocked_by: defaultdict[str, list[str]] = defaultdict(list)
        self._ready: list[tuple[int, int, str]] = []
        for event in events:
            blockers = {
                prev_id
                for prev_id in event.prev_event_ids
                if (prev_id in self._events or prev_id in gaps) and prev_id != event.event_id
            }
            self._blockers[event.event_id] = blockers
            for prev_id in blockers:
                self._blocked_by[prev_id].append(event.event_id)
            if not blockers:
                self._push(event)

    def _push(self, event: PartialEvent) -> None:
        heapq.heappush(self._ready, (event.depth, event.stream_ordering, event.event_id))

    def __len__(self) -> int:
        """How many events have not been handed out."""
        return len(self._blockers)

    @property
    def has_ready(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._ready)

    def fill(self, gap: str) -> None:
        """The state after `gap` is known now."""
        self._release(gap)

    def take(self, limit: int) -> list[PartialEvent]:
        """Up to `limit` events to walk in the order given, each after its parents."""
        batch: list[PartialEvent] = []
        while self._ready and len(batch) < limit:
            _, _, event_id = heapq.heappop(self._ready)
            batch.append(self._events[event_id])
            del self._blockers[event_id]
            self._release(event_id)
        return batch

    def gaps_in_order(self) -> list[str]:
        """The gaps that events still wait for, those of the oldest events first."""
        waiting = sorted(
            (self._events[event_id] for event_id in self._blockers),
            key=lambda event: (event.depth, event.stream_ordering),
        )
        return list(
            dict.fromkeys(
                prev_id
                for event in waiting
                for prev_id in event.prev_event_ids
                if prev_id in self._blockers[event.event_id] and prev_id not in self._events
            )
        )

    def break_cycle(self) -> list[str]:
        """Turns parents of the oldest event that is left into gaps, and returns them.

        Event ids of versions 1 and 2 are chosen by the sender, so `prev_events` can be made to
        form a cycle; asking another server for the state there opens it. Only for when nothing
        is ready and no gap is left.
        """
        oldest = min(
            (self._events[event_id] for event_id in self._blockers),
            key=lambda event: (event.depth, event.stream_ordering),
        )
        cyclic = sorted(self._blockers[oldest.event_id])
        for prev_id in cyclic:
            self._release_one(prev_id, oldest.event_id)
        return cyclic

    def _release(self, prev_id: str) -> None:
        for event_id in self._blocked_by.pop(prev_id, ()):
            self._unblock(prev_id, event_id)

    def _release_one(self, prev_id: str, event_id: str) -> None:
        self._blocked_by[prev_id].remove(event_id)
        self._unblock(prev_id, event_id)

    def _unblock(self, prev_id: str, event_id: str) -> None:
        blockers = self._blockers.get(event_id)
        if blockers is None:
            return
        blockers.discard(prev_id)
        if not blockers:
            self._push(self._events[event_id])


def external_prev_events(events: Iterable[PartialEvent]) -> set[str]:
    """The `prev_events` of `events` that are not among `events`."""
    events = list(events)
    own = {event.event_id for event in events}
    return {prev_id for event in events for prev_id in event.prev_event_ids} - own
