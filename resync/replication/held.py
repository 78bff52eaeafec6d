"""Rows that were announced while nobody was there: kept for the first reader to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from resync.replication.commands import Command, Position, Rdata


class HeldRows:
    """A bounded queue of rows of one writer, and where each stream stood before them."""

    def __init__(self, instance_name: str, limit: int) -> None:
        self._instance_name = instance_name
        self._limit = limit
        self._rows: deque[Rdata] = deque()
        self._from: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[Rdata], after: int) -> None:
        """Keep `rows` of one stream, which follow the position `after`.

        Beyond the limit the oldest are dropped: a reader sees from the position that it has to
        read those from the tables.
        """
        self._from.setdefault(rows[0].stream_name, after)
        self._rows.extend(rows)
        torn = False
        while self._rows and (torn or len(self._rows) > self._limit):
            dropped = self._rows.popleft()
            torn = dropped.token is None
            if dropped.token is not None:
                self._from[dropped.stream_name] = dropped.token

    def told(self, stream_name: str) -> int | None:
        """The position before the first row that is held of a stream; None if none is."""
        return self._from.get(stream_name)

    def take(self) -> list[Command]:
        """All that is held: a `POSITION` for each stream, then the rows."""
        commands: list[Command] = [
            Position(name, self._instance_name, position, position)
            for name, position in self._from.items()
        ]
        commands.extend(self._rows)
        self._rows.clear()
        self._from.clear()
        return commands
