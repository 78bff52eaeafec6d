"""The durable queue of events that wait to be taken into their rooms.

What `/send` acknowledged is in the database until it has been stored in its room or refused for
good, so it survives any crash. Rooms do not wait for each other, and neither do the servers that
send to a room: each has a lane of its own, so that one whose events lack much delays only itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog
from sqlalchemy import Connection

from federation.canonical_json import parse_json
from federation.errors import InvalidEvent, InvalidJson
from federation.events import Event
from resync.admin.metrics import Metrics
from resync.receive.order import missing_parents
from resync.receive.receiver import NotInRoom, Received, Receiver
from storage import inbound
from storage.database import Database
from storage.errors import DatabaseUnavailable, SchemaOutOfDate, StorageError
from storage.inbound import StagedEvent

logger = structlog.get_logger(__name__)

BATCH_SIZE = 200
"""Events of one server in one room that are taken in together."""
ANCESTOR_ROUNDS = 10
"""How far back parents are looked for among what other servers have sent and is waiting."""
BATCHES_AT_ONCE = 100
"""Batches in memory; most of those that take long wait for other servers."""
BATCHES_PER_ORIGIN = 4
POLL_SECONDS = 5.0
"""How often the database is asked for what another process staged."""
RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""The waits of an event that lacks something; after the last one it is dropped.

They are kept in memory: after a restart whatever waits is tried at once, and again from the start.
"""
HURRY_SECONDS = 10.0
"""How long at least between two tries of an event because its room got others."""

OnReceived = Callable[[str, Received], Awaitable[None]]
"""Told the room and what became of a batch, after it was stored."""


@dataclass(slots=True)
class _Waiting:
    """An event that was tried in vain. Times are monotonic.

    Attributes:
        due: when it is tried next.
        retry_at: when that would be if nothing had arrived in its room meanwhile.
        tried_at: when it was tried last.
        attempts: how often it was, without those that arrivals brought about.
    """

    due: float
    retry_at: float
    tried_at: float
    attempts: int


@dataclass(slots=True)
class _Lane:
    """What one server sends to one room."""

    room_id: str
    origin: str
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[str, _Waiting] = field(default_factory=dict)


class _Batch(NamedTuple):
    """Staged events, parsed.

    Attributes:
        events: each once.
        origins: event id to who sent it.
        unreadable: ids of those that are no events of the room's version.
        is_in_room: whether a local user is in the room; otherwise nothing has been parsed.
    """

    events: list[Event]
    origins: dict[str, str]
    unreadable: list[str]
    is_in_room: bool = True


class InboundQueue:
    """Takes staged events into their rooms, in the order of their arrival."""

    def __init__(
        self,
        *,
        database: Database,
        receiver: Receiver,
        on_received: OnReceived,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._receiver = receiver
        self._on_received = on_received
        self._metrics = metrics
        self._rooms: dict[str, dict[str, _Lane]] = {}
        self._slots = _Slots()
        self._is_running = False

    def wake(self, room_id: str, origin: str) -> None:
        """Events have been staged. Unless the queue runs, they wait for that."""
        if not self._is_running:
            return
        lanes = self._rooms.setdefault(room_id, {})
        lane = lanes.setdefault(origin, _Lane(room_id, origin))
        lane.wake.set()
        lane.idle.clear()
        if lane.task is None:
            lane.task = asyncio.create_task(self._work_on(lane))

    async def run(self) -> None:
        """Looks after what is staged, until cancelled; what is under way is then rolled back."""
        self._is_running = True
        try:
            while True:
                await self._wake_staged()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._is_running = False
            tasks = [lane.task for lane in self._lanes() if lane.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Waits until whatever is staged now was tried; `run` must be under way."""
        self._is_running = True
        await self._wake_staged()
        for lane in self._lanes():
            await lane.idle.wait()

    def _lanes(self) -> list[_Lane]:
        return [lane for lanes in self._rooms.values() for lane in lanes.values()]

    async def _wake_staged(self) -> None:
        try:
            for room_id, origin in await self._database.read(inbound.load_staged_lanes):
                if origin not in self._rooms.get(room_id, ()):
                    self.wake(room_id, origin)
        except StorageError as error:
            logger.error("cannot look for staged events", error=str(error))

    async def _work_on(self, lane: _Lane) -> None:
        try:
            await self._empty(lane)
        except Exception:
            # What is staged stays so, and is found again at the next look at the database.
            logger.exception(
                "events wait: an error of ours", room_id=lane.room_id, origin=lane.origin
            )
        finally:
            lane.idle.set()
            lanes = self._rooms[lane.room_id]
            del lanes[lane.origin]
            if not lanes:
                del self._rooms[lane.room_id]

    async def _empty(self, lane: _Lane) -> None:
        """Takes in what one server has sent to one room; ends when nothing of it waits."""
        while True:
            lane.wake.clear()
            now = time.monotonic()
            held = [event_id for event_id, w in lane.waiting.items() if w.due > now]
            try:
                async with self._slots.take(lane.origin):
                    batch = await self._database.read(_load_batch, lane.room_id, lane.origin, held)
                    if batch.origins:
                        await self._take_in(lane, batch)
                        continue
            except StorageError as error:
                logger.error("events wait: the database", room_id=lane.room_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS[0])
                continue
            # What was due and is not staged any more, another lane or process has dealt with.
            lane.waiting = {i: w for i, w in lane.waiting.items() if w.due > now}
            if lane.wake.is_set():
                continue
            if not lane.waiting:
                return
            lane.idle.set()
            soonest = min(waiting.due for waiting in lane.waiting.values())
            try:
                async with asyncio.timeout(max(0.0, soonest - time.monotonic())):
                    await lane.wake.wait()
            except TimeoutError:
                pass

    async def _take_in(self, lane: _Lane, batch: _Batch) -> None:
        if not batch.is_in_room:
            await self._drop(lane, list(batch.origins), "no user of ours is in the room")
            return
        if batch.unreadable:
            await self._drop(lane, batch.unreadable, "it cannot be read")
        events = batch.events
        if not events:
            return
        try:
            received = await self._receiver.take_in(lane.room_id, events, batch.origins)
        except NotInRoom:
            await self._drop(lane, list(batch.origins), "no user of ours is in the room")
            return
        except (DatabaseUnavailable, SchemaOutOfDate):
            raise
        except Exception:
            # A defect of ours: one event must not keep the others waiting.
            logger.exception(
                "events could not be taken in", room_id=lane.room_id, events=len(events)
            )
            if len(events) > 1:
                for event in events:
                    origin = {event.event_id: batch.origins[event.event_id]}
                    await self._take_in(lane, _Batch([event], origin, []))
                return
            received = Received([], {}, [], [], dict.fromkeys(batch.origins, "an error of ours"))
        self._count(received)
        await self._defer(lane, batch, received.deferred)
        for event_id in batch.origins.keys() - received.deferred.keys():
            lane.waiting.pop(event_id, None)
        if received.stored:
            self._hurry(lane.room_id)
            logger.info(
                "events received",
                room_id=lane.room_id,
                origin=lane.origin,
                stored=len(received.stored),
                rejected=len(received.rejected),
                soft_failed=len(received.soft_failed),
            )
            await self._on_received(lane.room_id, received)

    def _hurry(self, room_id: str) -> None:
        """Whoever waited for what has been stored now need not wait any longer."""
        soon = time.monotonic() + RETRY_SECONDS[0]
        for lane in self._rooms[room_id].values():
            for waiting in lane.waiting.values():
                hurried = max(soon, waiting.tried_at + HURRY_SECONDS)
                waiting.due = min(waiting.due, hurried)
            if lane.waiting:
                lane.wake.set()

    def _count(self, received: Received) -> None:
        rejected, soft_failed = len(received.rejected), len(received.soft_failed)
        self._metrics.inbound_pdus("accepted", len(received.stored) - rejected - soft_failed)
        self._metrics.inbound_pdus("rejected", rejected)
        self._metrics.inbound_pdus("soft_failed", soft_failed)
        self._metrics.inbound_pdus("dropped", len(received.refused))

    async def _defer(self, lane: _Lane, batch: _Batch, deferred: dict[str, str]) -> None:
        for event_id, reason in deferred.items():
            # What another server sent and came along is for the lane of that server.
            if batch.origins.get(event_id) != lane.origin:
                continue
            now = time.monotonic()
            waited = lane.waiting.get(event_id)
            if waited is not None and now < waited.retry_at:
                # A busy room must not use up the attempts of those that wait.
                lane.waiting[event_id] = replace(waited, due=waited.retry_at, tried_at=now)
                continue
            attempts = 0 if waited is None else waited.attempts
            if attempts >= len(RETRY_SECONDS):
                await self._drop(lane, [event_id], reason)
                continue
            pause = RETRY_SECONDS[attempts]
            lane.waiting[event_id] = _Waiting(now + pause, now + pause, now, attempts + 1)
            logger.info(
                "event waits", room_id=lane.room_id, event_id=event_id, seconds=pause, reason=reason
            )

    async def _drop(self, lane: _Lane, event_ids: Sequence[str], reason: str) -> None:
        logger.warning("events dropped", room_id=lane.room_id, events=len(event_ids), reason=reason)
        await self._database.run(inbound.delete_staged, lane.room_id, event_ids)
        self._metrics.inbound_pdus("dropped", len(event_ids))
        for event_id in event_ids:
            lane.waiting.pop(event_id, None)


class _Slots:
    """Bounds the batches that are in memory, those of one server and those of all."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._of_origin: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, origin: str) -> AsyncIterator[None]:
        """Waits for a slot, and holds it during the block."""
        self._users[origin] += 1
        own = self._of_origin.setdefault(origin, asyncio.Semaphore(BATCHES_PER_ORIGIN))
        try:
            async with own, self._all:
                yield
        finally:
            self._users[origin] -= 1
            if not self._users[origin]:
                del self._users[origin], self._of_origin[origin]


def _load_batch(connection: Connection, room_id: str, origin: str, held: Sequence[str]) -> _Batch:
    """The events of `origin` that wait longest, with parents of theirs that wait as well.

    Runs in a thread: parsing takes its time.
    """
    room = inbound.load_receiving_rooms(connection, [room_id]).get(room_id)
    more = inbound.load_staged(connection, room_id, origin, limit=BATCH_SIZE, without=held)
    if room is None:
        return _Batch([], {staged.event_id: staged.origin for staged in more}, [], False)
    batch = _Batch([], {}, [])
    for _ in range(ANCESTOR_ROUNDS):
        for staged in more:
            batch.origins[staged.event_id] = staged.origin
            try:
                batch.events.append(_event_of(staged, room.room_version))
            except (InvalidJson, InvalidEvent):
                batch.unreadable.append(staged.event_id)
        parents = missing_parents(batch.events, held)
        if not parents or len(batch.events) > BATCH_SIZE:
            break
        found = inbound.load_staged_events(
            connection, room_id, parents, limit=2 * BATCH_SIZE - len(batch.events)
        )
        more = list({s.event_id: s for s in found if s.event_id not in batch.origins}.values())
        if not more:
            break
    return batch


def _event_of(staged: StagedEvent, room_version: str) -> Event:
    return Event.from_pdu(
        parse_json(staged.json), room_version, event_id=staged.event_id, json_text=staged.json
    )
