"""Measures how long the event loop is kept from running by code that does not yield."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopMonitor:
    """Sleeps for short intervals and reports by how much each sleep overran.

    A stall is measured to within one interval (seconds): the sleep may have been under way
    for that long when the stall began.
    """

    def __init__(self, observe: Callable[[float], None], interval: float = 0.02) -> None:
        self._observe = observe
        self._interval = interval
        self._longest = 0.0

    @property
    def longest(self) -> float:
        """The longest stall seen, in seconds, since the start or the last `reset`."""
        return self._longest

    def reset(self) -> None:
        """Forget the longest stall, to measure one piece of work on its own."""
        self._longest = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            stall = max(0.0, loop.time() - due)
            self._longest = max(self._longest, stall)
            self._observe(stall)
