"""Waiting until a room is fully stated, woken by the row that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from resync.replication.streams import StreamRows, UnPartialStatedRoom

RECHECK_INTERVAL_S = 5.0
"""A room also leaves partial state without a row: when it is given up. The table tells."""


class RoomWaiter:
    """Wakes those who wait for a room, whichever process has finished it."""

    def __init__(self, is_partial: Callable[[str], Awaitable[bool]]) -> None:
        """`is_partial` asks the database whether a room is in partial state."""
        self._is_partial = is_partial
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def on_rows(self, announced: StreamRows) -> None:
        """Rows of some stream have been announced: wake whom they concern."""
        if announced.stream_name != UnPartialStatedRoom.NAME:
            return
        for _, row in announced.rows:
            for event in self._waiting.get(UnPartialStatedRoom.from_json(row).room_id, ()):
                event.set()

    def wake(self, room_id: str) -> None:
        """Let those who wait for a room look again."""
        for event in self._waiting.get(room_id, ()):
            event.set()

    async def wait_for_room(self, room_id: str, timeout_s: float) -> bool:
        """Whether the room left partial state, or was not in it, within `timeout_s` seconds."""
        event = asyncio.Event()
        # Registered before the question is asked, so that no row falls in between.
        self._waiting.setdefault(room_id, set()).add(event)
        try:
            async with asyncio.timeout(timeout_s):
                while await self._is_partial(room_id):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), RECHECK_INTERVAL_S)
                    event.clear()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting[room_id].discard(event)
            if not self._waiting[room_id]:
                del self._waiting[room_id]
