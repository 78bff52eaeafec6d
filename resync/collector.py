"""The garbage collector, kept from holding up the event loop.

A collection stands all threads still while it looks at objects: half a second for the events of a
room of 50,000 members, again and again as they arrive. Nearly everything here is freed without it,
as soon as nothing refers to it any more, so it runs when there is little to look at: between rooms.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONGEST_PAUSE_S = 60.0
"""A worker that is never without a room still collects this often, at the end of one."""


class Collector:
    """Decides when Python's collector runs. There is one per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rooms = 0
        self._collected_at = clock()

    @contextmanager
    def leave_out_what_exists(self) -> Iterator[None]:
        """What start-up made stays for good: no collection in the block looks at it again."""
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()

    @contextmanager
    def room(self) -> Iterator[None]:
        """The block works on a room, one of several perhaps: the collector waits until its end."""
        self._rooms += 1
        gc.disable()
        try:
            yield
        finally:
            self._rooms -= 1
            if self._rooms == 0 or self._clock() - self._collected_at > _LONGEST_PAUSE_S:
                gc.collect()
                self._collected_at = self._clock()
            if self._rooms == 0:
                gc.enable()
