"""Announces rows: reads them from the tables once they are complete and hands them to the links.

The tables are the truth and the links are a hint. A row is announced because it is in its table
and its writer is complete up to it, whether this process wrote it, another one, or one that has
died since; `notify` only makes it happen sooner.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection

from resync.replication.commands import Command, Position, Rdata
from resync.replication.held import HeldRows
from resync.replication.links import Link
from resync.replication.metrics import ReplicationMetrics
from resync.replication.ordering import InvalidationsFirst
from resync.replication.streams import STREAMS, Invalidation, StreamRows
from storage.database import Database
from storage.errors import DatabaseUnavailable
from storage.stream_positions import (
    Survey,
    claim_writer,
    load_announced,
    remove_dead_writers,
    renew_writer,
    retire_writer,
    store_announced,
    store_positions,
    survey,
)
from storage.streams import StreamIdGenerator, StreamTable, load_rows

logger = logging.getLogger(__name__)

BATCH_ROWS = 1000
"""Rows read and sent at a time; between batches the links are given time to send."""

MAX_HELD_ROWS = 10_000
"""Rows kept for the first reader to come."""

POLL_INTERVAL_S = 1.0
"""How often the tables are asked for rows that nobody has told us of."""

RENEW_INTERVAL_MS = 10_000


Listener = Callable[[StreamRows], None]


def rdata_commands(announced: StreamRows) -> list[Rdata]:
    """The rows as commands: of rows that share an id, only the last one bears it."""
    stream_name, instance_name, rows = announced
    following = [stream_id for stream_id, _ in rows[1:]] + [None]
    return [
        Rdata(stream_name, instance_name, None if stream_id == following_id else stream_id, row)
        for (stream_id, row), following_id in zip(rows, following, strict=True)
    ]


class Publisher:
    """Announces the rows of all writers to the readers of this process.

    Rows of ours that no reader was there for are kept for the first to come, across restarts too.
    """

    def __init__(
        self,
        database: Database,
        generators: Mapping[str, StreamIdGenerator],
        instance_name: str,
        metrics: ReplicationMetrics,
        *,
        now_ms: Callable[[], int],
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """`generators`: one per stream to announce, by name, all of writer `instance_name`.

        Rows are announced stream by stream in this order, invalidations first.
        """
        self._database = database
        self._generators = dict(generators)
        self._tables = [generator.stream for generator in generators.values()]
        self._instance_name = instance_name
        self._metrics = metrics
        self._now_ms = now_ms
        self._poll_interval_s = poll_interval_s
        self._token = secrets.token_hex(8)
        self._links: list[Link] = []
        self._listeners: list[Listener] = []
        self._cursors: dict[tuple[str, str], int] = {}
        self._sent: dict[tuple[str, str], int] = {}
        self._polled: dict[str, int] = {}
        self._stored: dict[str, tuple[int, int]] = {}
        self._held = HeldRows(instance_name, MAX_HELD_ROWS)
        invalidations = generators.get(Invalidation.NAME)
        self._gate = None if invalidations is None else InvalidationsFirst(invalidations.tracker)
        self._next_renewal_ms = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # For the worker

    def add_link(self, link: Link) -> None:
        """Announce over `link` from now on."""
        self._links.append(link)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` in this process with all rows announced from now on."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Claim the writer's name, find out where every writer stands, and begin to announce."""
        now_ms = self._now_ms()
        self._next_renewal_ms = now_ms + RENEW_INTERVAL_MS
        starts = {
            name: (generator.stream, generator.position)
            for name, generator in self._generators.items()
        }
        announced = await self._database.run(
            _claim, list(starts.values()), self._instance_name, self._token, now_ms
        )
        for (name, generator), told in zip(self._generators.items(), announced, strict=True):
            self._polled[name] = generator.start
            # Another writer begins where it has said it is; if it is dead, the rest of its rows
            # were perhaps never announced.
            for writer, position in generator.tracker.positions().items():
                self._cursors[name, writer] = position
            if told is not None:
                self._cursors[name, self._instance_name] = min(told, generator.position)
        self._sent = dict(self._cursors)
        self._task = asyncio.create_task(self._run(), name="replication publisher")

    async def notify(self) -> None:
        """Rows may have been committed: look soon. Does not wait for it."""
        self._wake.set()

    async def close(self) -> None:
        """Announce what is complete, then end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        try:
            await self._announce_ours()
            await self._database.run(retire_writer, self._instance_name, self._token)
        except DatabaseUnavailable as error:
            logger.warning("some rows are left to announce at the next start: %s", error)

    # For the links

    def positions(self) -> list[Position]:
        """One `POSITION` per stream and writer: rows were announced up to there."""
        return [
            Position(name, writer, position, position)
            for (name, writer), position in self._cursors.items()
        ]

    def take_held(self) -> list[Command]:
        """The rows that no reader was there for, behind the positions they begin at."""
        self._wake.set()
        return self._held.take()

    # The loop

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_poll = loop.time()
        while True:
            try:
                if loop.time() >= next_poll:
                    next_poll = loop.time() + self._poll_interval_s
                    await self._announce_all()
                else:
                    await self._announce_ours()
            except DatabaseUnavailable as error:
                logger.warning("cannot announce rows now, will try again: %s", error)
                await asyncio.sleep(self._poll_interval_s)
            except Exception:
                logger.exception("announcing rows failed, will try again")
                await asyncio.sleep(self._poll_interval_s)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_poll):
                    await self._wake.wait()
            self._wake.clear()

    async def _announce_ours(self) -> None:
        await self._announce_complete()
        await self._store()

    async def _announce_complete(self) -> None:
        # All positions are taken at one moment, so that what was complete together stays so.
        positions = {name: generator.position for name, generator in self._generators.items()}
        targets = positions if self._gate is None else self._gate.release(positions)
        for name in self._generators:
            upto = positions[name] if name == Invalidation.NAME else targets.get(name, 0)
            await self._announce(name, self._instance_name, upto)

    async def _announce_all(self) -> None:
        now_ms = self._now_ms()
        if now_ms >= self._next_renewal_ms:
            self._next_renewal_ms = now_ms + RENEW_INTERVAL_MS
            await self._renew(now_ms)
        surveys = await self._database.read(survey, self._tables, self._instance_name, now_ms)
        for (name, generator), found in zip(self._generators.items(), surveys, strict=True):
            await self._announce_others(name, generator, found)
            generator.tracker.observe(found.allocated)
            self._polled[name] = found.allocated
        await self._announce_complete()
        self._send_bare_positions(dead=frozenset().union(*(found.dead for found in surveys)))
        await self._store()
        await self._adopt(surveys, now_ms)

    async def _announce_others(
        self, name: str, generator: StreamIdGenerator, found: Survey
    ) -> None:
        for writer, position in found.positions.items():
            # A writer that was not there when we looked last has reserved all its ids since.
            seen = min(position, self._polled[name])
            self._sent.setdefault((name, writer), self._cursors.setdefault((name, writer), seen))
            dead = writer in found.dead
            await self._announce(name, writer, position, relayed=not dead, dead=dead)
            if dead:
                generator.tracker.forget(writer)
            else:
                generator.tracker.advance(writer, position)

    async def _announce(
        self, name: str, writer: str, upto: int, *, relayed: bool = False, dead: bool = False
    ) -> None:
        """Announce what `writer` has written to the stream, up to and with `upto`."""
        while (after := self._cursors[name, writer]) < upto:
            batch = await self._database.read(
                load_rows, self._generators[name].stream, writer, after, upto, BATCH_ROWS
            )
            self._cursors[name, writer] = batch.upto
            if batch.rows:
                rows = [(row.stream_id, STREAMS[name](*row.values).to_json()) for row in batch.rows]
                if dead:
                    # Readers may know it from elsewhere, and not that they hear of it from us.
                    self._send([Position(name, writer, after, after)], relayed=False)
                self._send_rows(StreamRows(name, writer, rows), after, relayed=relayed)
                for link in self._links:
                    await link.ready()

    def _send_rows(self, announced: StreamRows, after: int, *, relayed: bool) -> None:
        name, writer, rows = announced
        commands = rdata_commands(announced)
        if not self._send(commands, relayed=relayed) and writer == self._instance_name:
            self._held.add(commands, after)
        self._sent[name, writer] = rows[-1][0]
        self._metrics.rows_out.labels(name).inc(len(rows))
        for listener in self._listeners:
            try:
                listener(announced)
            except Exception:
                logger.exception("a listener failed on rows of the stream %s", name)

    def _send_bare_positions(self, dead: frozenset[str]) -> None:
        """Tell of positions that have advanced without rows."""
        for (name, writer), position in self._cursors.items():
            sent = self._sent[name, writer]
            self._sent[name, writer] = position
            if sent < position and writer not in dead:
                self._send(
                    [Position(name, writer, sent, position)],
                    relayed=writer != self._instance_name,
                )

    def _send(self, commands: Sequence[Command], *, relayed: bool) -> bool:
        links = [link for link in self._links if link.has_readers()]
        for link in links:
            link.send(commands, relayed=relayed)
        return bool(links)

    # What other processes, and this one after a restart, go by

    async def _store(self) -> None:
        changed: dict[str, tuple[int, int]] = {}
        for name, generator in self._generators.items():
            announced = self._cursors[name, self._instance_name]
            held_after = self._held.told(name)
            told = announced if held_after is None else held_after
            if self._stored.get(name) != (announced, told):
                changed[name] = (announced, told)
            self._show(name, generator)
        if changed:
            tables = {name: self._generators[name].stream for name in changed}
            await self._database.run(_store, tables, self._instance_name, changed)
            self._stored.update(changed)

    async def _adopt(self, surveys: Sequence[Survey], now_ms: int) -> None:
        """Store that dead writers are complete: their rows have just been announced."""
        for table, found in zip(self._tables, surveys, strict=True):
            if found.dead:
                positions = {writer: found.positions[writer] for writer in found.dead}
                await self._database.run(store_positions, table, positions)
        dead = frozenset().union(*(found.dead for found in surveys))
        if dead:
            logger.info("announced the last rows of dead writers: %s", ", ".join(sorted(dead)))
            await self._database.run(remove_dead_writers, dead, now_ms)

    async def _renew(self, now_ms: int) -> None:
        if not await self._database.run(renew_writer, self._instance_name, self._token, now_ms):
            logger.error(
                "another process writes under the name %r, or this one was taken for dead:"
                " rows may be announced late or twice; give each process its own instance_name",
                self._instance_name,
            )
            await self._database.run(claim_writer, self._instance_name, self._token, now_ms)

    def _show(self, name: str, generator: StreamIdGenerator) -> None:
        for writer, position in generator.tracker.positions().items():
            announced = self._cursors.get((name, writer), position)
            self._metrics.position.labels(name, writer).set(position)
            self._metrics.announced.labels(name, writer).set(announced)
            self._metrics.lag.labels(name, writer).set(max(0, position - announced))


def _claim(
    connection: Connection,
    starts: Sequence[tuple[StreamTable, int]],
    instance_name: str,
    token: str,
    now_ms: int,
) -> list[int | None]:
    claim_writer(connection, instance_name, token, now_ms)
    for table, position in starts:
        store_positions(connection, table, {instance_name: position})
    return [load_announced(connection, table, instance_name) for table, _ in starts]


def _store(
    connection: Connection,
    tables: Mapping[str, StreamTable],
    instance_name: str,
    changed: Mapping[str, tuple[int, int]],
) -> None:
    for name, (position, told) in changed.items():
        store_positions(connection, tables[name], {instance_name: position})
        store_announced(connection, tables[name], instance_name, told)
