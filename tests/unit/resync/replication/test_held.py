"""Rows kept for the first reader to come."""

from __future__ import annotations

from resync.replication.commands import Position, Rdata
from resync.replication.held import HeldRows


def row(stream: str, token: int | None) -> Rdata:
    return Rdata(stream, "w", token, [])


def test_rows_come_behind_the_positions_they_begin_at() -> None:
    held = HeldRows("w", 10)
    held.add([row("x", 4)], after=2)
    held.add([row("y", 8)], after=7)
    held.add([row("x", 5)], after=4)
    assert (held.told("x"), held.told("y"), held.told("z")) == (2, 7, None)
    assert held.take() == [
        Position("x", "w", 2, 2),
        Position("y", "w", 7, 7),
        row("x", 4),
        row("y", 8),
        row("x", 5),
    ]
    assert held.take() == []
    assert held.told("x") is None


def test_the_oldest_are_dropped_whole_and_the_position_says_so() -> None:
    held = HeldRows("w", 3)
    held.add([row("x", None), row("x", None), row("x", 4), row("x", 5)], after=1)
    assert held.take() == [Position("x", "w", 4, 4), row("x", 5)]
