"""Waiting until a room or an event is fully stated, woken by the row that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from resync.replication.streams import StreamRows, UnPartialStatedEvent, UnPartialStatedRoom

RECHECK_INTERVAL_S = 5.0
"""What is given up also leaves partial state, without a row: the table tells."""


class PartialStateWaiter:
    """Wakes those who wait for rooms or for events, by their ids, whichever process did it."""

    def __init__(self, is_partial: Callable[[str], Awaitable[bool]]) -> None:
        """`is_partial` asks the database whether the id is of something in partial state."""
        self._is_partial = is_partial
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def wake(self, identifier: str) -> None:
        """Let those who wait for it look again."""
        for event in self._waiting.get(identifier, ()):
            event.set()

    def wake_all(self) -> None:
        """Let everybody look again."""
        for identifier in list(self._waiting):
            self.wake(identifier)

    async def wait_for(self, identifier: str, timeout_s: float) -> bool:
        """Whether it left partial state, or was not in it, within `timeout_s` seconds."""
        event = asyncio.Event()
        # Registered before the question is asked, so that no row falls in between.
        self._waiting.setdefault(identifier, set()).add(event)
        try:
            async with asyncio.timeout(timeout_s):
                while await self._is_partial(identifier):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), RECHECK_INTERVAL_S)
                    event.clear()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting[identifier].discard(event)
            if not self._waiting[identifier]:
                del self._waiting[identifier]


def wake_by_rows(
    announced: StreamRows, rooms: PartialStateWaiter, events: PartialStateWaiter
) -> None:
    """Rows of some stream have been announced: wake whom they concern."""
    if announced.stream_name == UnPartialStatedRoom.NAME:
        for _, row in announced.rows:
            rooms.wake(UnPartialStatedRoom.from_json(row).room_id)
    elif announced.stream_name == UnPartialStatedEvent.NAME:
        for _, row in announced.rows:
            events.wake(UnPartialStatedEvent.from_json(row).event_id)
