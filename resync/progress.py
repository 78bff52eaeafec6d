"""How far each room is: written by the work, read by whoever shows it.

The board is used from the event loop only. Readers never slow the work down: each gets the
newest state of each room when it comes to look, not every step in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Phase(StrEnum):
    """What is being done for a room, in the order in which it happens."""

    JOIN = "joining"
    FETCH = "fetching state"
    CHECK = "checking events"
    RESOLVE = "resolving state"
    WALK = "walking"
    COMPLETE = "completing"
    BACKOFF = "waiting to try again"
    DONE = "fully stated"


@dataclass(frozen=True)
class RoomProgress:
    """Where one room is. `total` is 0 while it is not known; `detail` says what is waited for."""

    room_id: str
    phase: str
    done: int = 0
    total: int = 0
    detail: str = ""

    @property
    def finished(self) -> bool:
        """Whether the room has nothing partial left."""
        return self.phase == Phase.DONE


class Subscription:
    """One reader of the board: an asynchronous iterator, closed by leaving its `async with`."""

    def __init__(self, board: ProgressBoard) -> None:
        self._board = board
        self._changed: dict[str, RoomProgress] = {}
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Subscription:
        self._board._subscriptions.add(self)
        for progress in self._board.rooms.values():
            self._offer(progress)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._board._subscriptions.discard(self)

    def _offer(self, progress: RoomProgress) -> None:
        self._changed[progress.room_id] = progress
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[RoomProgress]:
        """What is on the board now, then every change; steps a slow reader missed are skipped."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, {}
            for progress in changed.values():
                yield progress


class ProgressBoard:
    """The newest progress of each room that this process works on."""

    def __init__(self) -> None:
        self._rooms: dict[str, RoomProgress] = {}
        self._subscriptions: set[Subscription] = set()

    @property
    def rooms(self) -> Mapping[str, RoomProgress]:
        """Room id to its progress, as a read-only view."""
        return MappingProxyType(self._rooms)

    def update(
        self, room_id: str, phase: str, done: int = 0, total: int = 0, detail: str = ""
    ) -> None:
        """Say where a room is: `done` of `total` events of this phase."""
        progress = RoomProgress(room_id, phase, done, total, detail)
        if self._rooms.get(room_id) == progress:
            return
        self._rooms[room_id] = progress
        for subscription in self._subscriptions:
            subscription._offer(progress)

    def remove(self, room_id: str) -> None:
        """Take a room off the board that is no longer worked on here."""
        self._rooms.pop(room_id, None)

    def subscribe(self) -> Subscription:
        """A new reader, to be entered with `async with` and read with `async for`."""
        return Subscription(self)
