"""Following streams that others write: no row lost, none twice, whichever way they come.

A reader knows for each stream and writer up to where it has been. Rows that come in order are
passed on; a `POSITION` that shows a gap sends it to the tables. Whatever comes before the first
`POSITION` of a connection is dropped, since nobody knows what came before it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from resync.replication.commands import Command, Position, Rdata
from resync.replication.metrics import ReplicationMetrics
from resync.replication.streams import STREAMS, StreamRows
from storage.database import Database
from storage.stream_events import load_event_rows
from storage.streams import load_rows

logger = logging.getLogger(__name__)

EVENTS = "events"
"""Synapse's stream of new events, which we follow and do not write."""

FETCH_ROWS = 1000
MAX_BATCH_ROWS = 100_000
"""Most rows that may share an id."""

MAX_WRITERS = 10_000
"""Most pairs of stream and writer that a reader keeps account of."""

Handler = Callable[[StreamRows], Awaitable[None]]


class ProtocolViolation(ValueError):
    """The peer sends what no writer sends; the connection is of no use."""


class StopFollowing(Exception):
    """Raised by a handler that wants no more rows: ends `run` of the client that feeds it."""


class RowSource(Protocol):
    """Where rows are fetched that were missed."""

    def has(self, stream_name: str) -> bool:
        """Whether the rows of the stream can be had here."""
        ...

    async def load(
        self, stream_name: str, instance_name: str, after: int, upto: int
    ) -> tuple[list[tuple[int, Any]], int]:
        """Some of the rows with `after` < id <= `upto`, and the id they are complete up to."""
        ...


class TableRows:
    """The tables of the streams, in the database that their writers write to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def has(self, stream_name: str) -> bool:
        return stream_name in STREAMS or stream_name == EVENTS

    async def load(
        self, stream_name: str, instance_name: str, after: int, upto: int
    ) -> tuple[list[tuple[int, Any]], int]:
        if stream_name == EVENTS:
            events = await self._database.read(
                load_event_rows, instance_name, after, upto, FETCH_ROWS
            )
            return [(row.stream_id, list(row.values)) for row in events.rows], events.upto
        row_type = STREAMS[stream_name]
        batch = await self._database.read(
            load_rows, row_type.TABLE, instance_name, after, upto, FETCH_ROWS
        )
        return [(row.stream_id, row_type(*row.values).to_json()) for row in batch.rows], batch.upto


class Reader:
    """Follows the streams it is fed the commands of, over one connection after another."""

    def __init__(
        self,
        handler: Handler,
        metrics: ReplicationMetrics,
        *,
        source: RowSource | None = None,
        streams: Collection[str] | None = None,
        ignore_writer: str | None = None,
        positions: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """Begin at `positions`; a writer that is not in it is followed from where it stands.

        Args:
            handler: gets the rows, one call after the other. An error it raises ends `feed`, and
                the rows of that call count as not delivered.
            source: without one, rows that were missed stay missed, and the log says so.
            streams: names of the streams to follow; None for all.
            ignore_writer: ourselves, where we hear our own echo.
            positions: by stream and writer.
        """
        self.positions: dict[tuple[str, str], int] = dict(positions or {})
        self._handler = handler
        self._metrics = metrics
        self._source = source
        self._streams = streams
        self._ignore_writer = ignore_writer
        self._connected: set[tuple[str, str]] = set()
        self._batches: dict[tuple[str, str], list[Any]] = {}

    def disconnected(self) -> None:
        """The connection is gone: nothing follows on what it brought last."""
        self._connected.clear()
        self._batches.clear()

    async def feed(self, commands: Sequence[Command]) -> None:
        """Take commands in the order in which they came.

        Raises ProtocolViolation, whatever the handler raises, and DatabaseUnavailable when the
        source cannot be asked. The connection has to be given up then; nothing is lost by it.
        """
        run: list[tuple[int, Any]] = []
        run_key: tuple[str, str] | None = None
        for command in commands:
            if not isinstance(command, Rdata | Position) or not self._follows(command):
                continue
            key = (command.stream_name, command.instance_name)
            if run_key is not None and (key != run_key or isinstance(command, Position)):
                await self._deliver(run_key, run)
                run, run_key = [], None
            if isinstance(command, Position):
                await self._on_position(key, command)
            elif rows := self._on_rdata(key, command, run[-1][0] if run else None):
                run.extend(rows)
                run_key = key
        if run_key is not None:
            await self._deliver(run_key, run)

    def _follows(self, command: Rdata | Position) -> bool:
        if command.instance_name == self._ignore_writer:
            return False
        return self._streams is None or command.stream_name in self._streams

    async def _on_position(self, key: tuple[str, str], command: Position) -> None:
        # What was missed is fetched whole, with what came of the batch so far.
        self._batches.pop(key, None)
        self._connected.discard(key)
        current = self.positions.get(key)
        if current is None and len(self.positions) >= MAX_WRITERS:
            raise ProtocolViolation(f"more than {MAX_WRITERS} writers")
        if current is not None and current < command.previous_token:
            await self._catch_up(key, current, command.new_token)
        self.positions[key] = max(command.new_token, current or command.new_token)
        self._connected.add(key)

    async def _catch_up(self, key: tuple[str, str], after: int, upto: int) -> None:
        name, writer = key
        if self._source is None or not self._source.has(name):
            logger.warning(
                "rows of the stream %s by %s between %d and %d were missed and cannot be fetched",
                name,
                writer,
                after,
                upto,
            )
            return
        logger.info("fetching rows of %s by %s between %d and %d", name, writer, after, upto)
        while after < upto:
            rows, after = await self._source.load(name, writer, after, upto)
            if rows:
                await self._deliver(key, rows)
            self.positions[key] = after

    def _on_rdata(
        self, key: tuple[str, str], command: Rdata, last: int | None
    ) -> list[tuple[int, Any]]:
        """The rows that `command` completes; `last` is the id of the row before it, if any."""
        if key not in self._connected:
            return []
        if command.token is None:
            batch = self._batches.setdefault(key, [])
            batch.append(command.row)
            if len(batch) > MAX_BATCH_ROWS:
                raise ProtocolViolation(f"more than {MAX_BATCH_ROWS} rows of one id")
            return []
        batch = self._batches.pop(key, [])
        if command.token <= (self.positions[key] if last is None else last):
            return []
        return [(command.token, row) for row in (*batch, command.row)]

    async def _deliver(self, key: tuple[str, str], rows: list[tuple[int, Any]]) -> None:
        await self._handler(StreamRows(*key, rows))
        self.positions[key] = rows[-1][0]
        self._metrics.rows_in.labels(key[0]).inc(len(rows))
