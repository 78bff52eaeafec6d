"""Where each writer of a stream stands: pure bookkeeping, no database, no clock.

A stream is an append-only log of facts with ascending ids. A writer *reserves* an id, writes its
fact in a transaction, then *completes* the id, whether the transaction was committed or rolled
back. Transactions complete out of order, so a position is not the last id completed but the
largest id up to which nothing is outstanding. There are two such positions:

* the position **of a writer**: everything which that writer reserved up to there is complete;
* the **linear** position: everything which any writer reserved up to there is complete.

One tracker belongs to one process. It knows the unfinished ids of its own writer, and of the
others only the positions they have announced. Source: Synapse's documentation of streams.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

FIRST_POSITION = 1
"""The position of a stream that nobody has written to: the first id is 2."""

_MAX_REMEMBERED = 100_000
"""How many completed ids beyond the linear position are remembered; fewer only delay it."""


class Reservation:
    """Ids that are being fetched, or were fetched and are not complete yet."""

    __slots__ = ("floor", "ids")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.ids: tuple[int, ...] = ()

    @property
    def smallest(self) -> int:
        """The smallest id this reservation can hold."""
        return min(self.ids) if self.ids else self.floor + 1


class PositionTracker:
    """The positions of one stream as one process knows them. Not thread-safe."""

    def __init__(
        self,
        local_writer: str,
        *,
        start: int = FIRST_POSITION,
        others: Mapping[str, int] | None = None,
    ) -> None:
        """Begin where the database stands.

        `start` is the largest id known to have been handed out to anybody: after a restart
        nothing of ours is outstanding, so it is our position. `others` are the other writers'.
        """
        self.local_writer = local_writer
        self._others = dict(others or {})
        self._open: dict[Reservation, None] = {}
        self._allocated = max(FIRST_POSITION, start, *self._others.values())
        self._linear = min([self._allocated, *self._others.values()])
        self._completed: list[int] = []

    # The local writer

    def begin(self) -> Reservation:
        """Say that ids are about to be fetched from the sequence.

        Between the sequence handing out an id and this process hearing of it, the id is
        outstanding though nobody can name it yet. It will be larger than every id seen so far,
        so until then no position moves past what has been seen.
        """
        reservation = Reservation(self._allocated)
        self._open[reservation] = None
        return reservation

    def reserve(self, reservation: Reservation, ids: Sequence[int]) -> None:
        """Name the ids the sequence gave for `reservation`.

        Raises ValueError if one of them is not larger than all ids seen when it began: the
        sequence has gone back, and rows under such an id would never be announced.
        """
        if reservation not in self._open or reservation.ids:
            raise ValueError("this reservation is complete, or has its ids already")
        if not ids or min(ids) <= reservation.floor:
            raise ValueError(f"reserved {list(ids)}, but {reservation.floor} was already in use")
        reservation.ids = tuple(ids)
        self._allocated = max(self._allocated, *ids)

    def complete(self, reservation: Reservation) -> None:
        """Complete all ids of `reservation`: committed or rolled back, it makes no difference."""
        del self._open[reservation]
        for stream_id in reservation.ids:
            heapq.heappush(self._completed, stream_id)
        self._advance_linear()

    # The other writers

    def advance(self, writer: str, position: int, rows: Iterable[int] = ()) -> None:
        """Another writer has announced that it is complete up to `position`.

        `rows` are the ids of rows seen from it on the way: they are complete, whereas the
        position itself may be an id that somebody else holds.
        """
        if writer == self.local_writer:
            self.observe(position)
            return
        self._others[writer] = max(position, self._others.get(writer, FIRST_POSITION))
        self._allocated = max(self._allocated, position)
        for stream_id in rows:
            heapq.heappush(self._completed, stream_id)
        self._advance_linear()

    def forget(self, writer: str) -> None:
        """Another writer is gone for good: it no longer holds the linear position back."""
        self._others.pop(writer, None)
        self._advance_linear()

    def observe(self, stream_id: int) -> None:
        """The sequence has handed out `stream_id` to somebody."""
        self._allocated = max(self._allocated, stream_id)
        self._advance_linear()

    # Positions

    @property
    def idle(self) -> bool:
        """Whether nothing of the local writer is outstanding."""
        return not self._open

    @property
    def allocated(self) -> int:
        """The largest id known to have been handed out to anybody."""
        return self._allocated

    @property
    def linear(self) -> int:
        """The largest id up to which the facts of all known writers are complete."""
        return self._linear

    def position(self, writer: str) -> int:
        """The largest id up to which all facts of `writer` are complete.

        For the local writer that is just below its smallest outstanding id; with nothing
        outstanding, the largest id in use, since whatever it reserves next will be larger.
        """
        if writer == self.local_writer:
            if self._open:
                return min(reservation.smallest for reservation in self._open) - 1
            return self._allocated
        return max(self._others.get(writer, self._linear), self._linear)

    def positions(self) -> dict[str, int]:
        """The position of every known writer."""
        return {writer: self.position(writer) for writer in (self.local_writer, *self._others)}

    def _advance_linear(self) -> None:
        behind = min([self.position(self.local_writer), *self._others.values()])
        self._linear = max(self._linear, behind)
        completed = self._completed
        # A run of completed ids without a gap belongs to nobody else, so it may be passed
        # although some writer has not announced that it got this far.
        while completed and completed[0] <= self._linear + 1:
            self._linear = max(self._linear, heapq.heappop(completed))
        if len(completed) > _MAX_REMEMBERED:
            self._completed = heapq.nsmallest(_MAX_REMEMBERED // 2, completed)
