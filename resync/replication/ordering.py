"""Which rows may be announced so that cache invalidations come before what they are about."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from storage.streams import PositionTracker


class InvalidationsFirst:
    """Holds the rows of other streams back until the invalidations written with them are out.

    A reader that is woken by a room's row and asks its caches must not be answered by them as
    they were before. The rows of one transaction are in several streams, and in the stream of
    invalidations they may have to wait for an unrelated id that is not complete.
    """

    def __init__(self, invalidations: PositionTracker) -> None:
        self._invalidations = invalidations
        self._waiting: deque[tuple[int, Mapping[str, int]]] = deque()
        self._released: Mapping[str, int] = {}

    def release(self, positions: Mapping[str, int]) -> Mapping[str, int]:
        """Up to where each stream may be announced, given the positions they have now.

        Positions of one moment stay together: they are released when every invalidation that
        had been reserved by then is complete.
        """
        reserved = self._invalidations.allocated
        if self._waiting and self._waiting[-1][0] == reserved:
            self._waiting.pop()
        self._waiting.append((reserved, positions))
        complete = self._invalidations.position(self._invalidations.local_writer)
        while self._waiting and self._waiting[0][0] <= complete:
            self._released = self._waiting.popleft()[1]
        return self._released
