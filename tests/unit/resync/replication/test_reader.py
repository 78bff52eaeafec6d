"""Following a stream over connections that come and go."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from resync.replication import reader as reader_module
from resync.replication.commands import Command, Ping, Position, Rdata
from resync.replication.metrics import ReplicationMetrics
from resync.replication.publisher import rdata_commands
from resync.replication.reader import ProtocolViolation, Reader
from resync.replication.streams import StreamRows

WRITERS = ("a", "b")


class Log:
    """A stream's table, in memory: facts of one or more rows, by several writers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str]] = []
        self.last = 1

    def write(self, writer: str, rows: int) -> None:
        self.last += 1
        self.rows += [(self.last, writer, f"{writer}{self.last}.{n}") for n in range(rows)]

    def between(self, writer: str, after: int, upto: int) -> list[tuple[int, Any]]:
        return [(i, row) for i, w, row in self.rows if w == writer and after < i <= upto]

    def has(self, stream_name: str) -> bool:
        return stream_name == "log"

    async def load(
        self, stream_name: str, instance_name: str, after: int, upto: int
    ) -> tuple[list[tuple[int, Any]], int]:
        rows = self.between(instance_name, after, upto)
        if not rows:
            return [], upto
        first = rows[0][0]  # the smallest batch there can be
        return [row for row in rows if row[0] == first], first


class Collected:
    def __init__(self) -> None:
        self.rows: list[tuple[str, int, Any]] = []

    async def __call__(self, received: StreamRows) -> None:
        self.rows += [(received.instance_name, i, row) for i, row in received.rows]


def metrics() -> ReplicationMetrics:
    return ReplicationMetrics(CollectorRegistry())


ACTIONS = [
    *("write", "write", "announce", "announce", "announce", "connect", "connect"),
    *("bare", "early", "restart", "drop", "again"),
]
steps = st.tuples(st.sampled_from(ACTIONS), st.sampled_from(WRITERS), st.integers(0, 4))


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=50, max_size=80))
async def test_every_row_arrives_once_and_in_order(plan: list[tuple[str, str, int]]) -> None:
    log, collected = Log(), Collected()
    reader = Reader(
        collected, metrics(), source=log, positions={("log", writer): 1 for writer in WRITERS}
    )
    announced = dict.fromkeys(WRITERS, 1)
    connected = False

    def positions() -> list[Command]:
        return [Position("log", w, p, p) for w, p in announced.items()]

    for action, writer, number in plan:
        sent: list[Command] = []
        match action:
            case "write":
                log.write(writer, 1 + number % 3)
            case "announce":
                rows = log.between(writer, announced[writer], log.last)
                sent = list(rdata_commands(StreamRows("log", writer, rows))) if rows else []
                announced[writer] = log.last
                # A connection can break in the middle of what is being sent.
                if sent and number == 0:
                    sent = sent[: len(sent) // 2]
                    if connected:
                        await reader.feed(sent)
                        reader.disconnected()
                    connected, sent = False, []
            case "bare":
                sent = [Position("log", writer, announced[writer], log.last)]
                if log.between(writer, announced[writer], log.last):
                    sent = []
                else:
                    announced[writer] = log.last
            case "early" if not connected:
                # On a shared channel rows come before anybody has told where they begin.
                rows = log.between(writer, announced[writer], log.last)
                if rows:
                    await reader.feed(rdata_commands(StreamRows("log", writer, rows)))
                    announced[writer] = log.last
            case "restart":
                # A writer that died before it noted what it had sent sends it again.
                reader.disconnected()
                connected = False
                announced[writer] = max(1, announced[writer] - number)
            case "drop":
                reader.disconnected()
                connected = False
            case "connect" if not connected:
                connected, sent = True, positions()
            case "again" if connected:
                sent = positions()
        if connected and sent:
            await reader.feed([Ping(""), *sent])
    reader.disconnected()
    announced = dict.fromkeys(WRITERS, log.last)
    await reader.feed(positions())
    for writer in WRITERS:
        assert [(i, row) for w, i, row in collected.rows if w == writer] == log.between(
            writer, 1, log.last
        )


async def test_a_batch_is_applied_as_one() -> None:
    collected: list[StreamRows] = []

    async def collect(received: StreamRows) -> None:
        collected.append(received)

    reader = Reader(collect, metrics())
    await reader.feed([Position("log", "a", 1, 1), Rdata("log", "a", None, 1)])
    await reader.feed([Rdata("log", "a", None, 2)])
    assert collected == []
    assert reader.positions == {("log", "a"): 1}
    await reader.feed([Rdata("log", "b", 9, 0), Rdata("log", "a", 7, 3), Rdata("log", "a", 8, 4)])
    assert collected == [StreamRows("log", "a", [(7, 1), (7, 2), (7, 3), (8, 4)])]
    assert reader.positions == {("log", "a"): 8}


async def test_rows_that_come_again_are_dropped() -> None:
    collected = Collected()
    reader = Reader(collected, metrics())
    begin = Position("log", "a", 1, 1)
    await reader.feed([begin, *(Rdata("log", "a", token, token) for token in (5, 5, 4, 6))])
    assert collected.rows == [("a", 5, 5), ("a", 6, 6)]


async def test_half_a_batch_is_forgotten_when_positions_come() -> None:
    collected = Collected()
    reader = Reader(collected, metrics())
    begin = Position("log", "a", 1, 1)
    await reader.feed([begin, Rdata("log", "a", None, "first")])
    await reader.feed([begin, Rdata("log", "a", None, "first"), Rdata("log", "a", 2, "second")])
    assert collected.rows == [("a", 2, "first"), ("a", 2, "second")]


async def test_only_what_is_followed_is_passed_on() -> None:
    collected = Collected()
    reader = Reader(collected, metrics(), streams={"log"}, ignore_writer="us")
    for stream, writer in (("log", "us"), ("other", "a"), ("log", "a")):
        await reader.feed([Position(stream, writer, 1, 1), Rdata(stream, writer, 2, [stream])])
    assert collected.rows == [("a", 2, ["log"])]


async def test_a_gap_that_cannot_be_filled_is_told(caplog: pytest.LogCaptureFixture) -> None:
    collected = Collected()
    reader = Reader(collected, metrics(), positions={("log", "a"): 3})
    with caplog.at_level(logging.WARNING):
        await reader.feed([Position("log", "a", 5, 6), Rdata("log", "a", 7, 0)])
    assert "between 3 and 6 were missed" in caplog.text
    assert collected.rows == [("a", 7, 0)]


async def test_rows_that_the_handler_refused_come_again() -> None:
    collected = Collected()
    refuse = True

    async def handler(received: StreamRows) -> None:
        if refuse:
            raise LookupError
        await collected(received)

    log = Log()
    reader = Reader(handler, metrics(), source=log, positions={("log", "a"): 1})
    log.write("a", 1)
    commands = [Position("log", "a", 1, 1), Rdata("log", "a", 2, "a2.0")]
    with pytest.raises(LookupError):
        await reader.feed(commands)
    reader.disconnected()
    refuse = False
    await reader.feed([Position("log", "a", 2, 2)])
    assert collected.rows == [("a", 2, "a2.0")]


async def test_accounts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_WRITERS", 5)
    monkeypatch.setattr(reader_module, "MAX_BATCH_ROWS", 5)
    reader = Reader(Collected(), metrics())
    with pytest.raises(ProtocolViolation, match="5 writers"):
        await reader.feed([Position("log", str(n), 1, 1) for n in range(6)])
    with pytest.raises(ProtocolViolation, match="5 rows"):
        await reader.feed([Rdata("log", "1", None, n) for n in range(6)])
