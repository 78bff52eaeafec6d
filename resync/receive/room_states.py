"""The states of rooms that received events last, kept so that the next batch need not load them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from resync.walk.states import RoomState, RoomStates

MAX_ENTRIES = 500_000
"""State entries that are kept, of all rooms together."""
MAX_CHANGES = 1000
"""States that differ from their base in more entries than this are loaded anew."""


@dataclass(slots=True)
class KnownStates:
    """States of one room by their state groups."""

    states: RoomStates = field(default_factory=RoomStates)
    by_group: dict[int, RoomState] = field(default_factory=dict)


class StatesOfRooms:
    """A bounded memory of states, room by room. A state group never changes, so
    none is stale until its room is purged: the next group may have its number."""

    def __init__(self) -> None:
        self._rooms: OrderedDict[str, KnownStates] = OrderedDict()

    def take(self, room_id: str) -> KnownStates:
        """What is known of a room. It is forgotten until it is kept again: work may fail."""
        return self._rooms.pop(room_id, None) or KnownStates()

    def keep(self, room_id: str, known: KnownStates, used: Iterable[RoomState]) -> None:
        """Keeps the stored ones of the states that were `used`, if that pays."""
        known.by_group = {s.group.group_id: s for s in used if s.group.group_id is not None}
        if any(len(state.changes) > MAX_CHANGES for state in known.by_group.values()):
            return
        self._rooms[room_id] = known
        entries = sum(len(room.states.base) for room in self._rooms.values())
        while entries > MAX_ENTRIES and self._rooms:
            _, dropped = self._rooms.popitem(last=False)
            entries -= len(dropped.states.base)
