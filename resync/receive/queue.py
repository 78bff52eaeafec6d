"""The durable queue of events that wait to be taken into their rooms.

What `/send` acknowledged is in the database until it has been stored in its room or refused for
good, so it survives any crash. Rooms do not wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection

from federation.canonical_json import parse_json
from federation.errors import InvalidEvent, InvalidJson
from federation.events import Event
from resync.receive.order import missing_parents
from resync.receive.receiver import NotInRoom, Received, Receiver
from storage import inbound
from storage.database import Database
from storage.errors import StorageError
from storage.inbound import StagedEvent

logger = structlog.get_logger(__name__)

BATCH_SIZE = 200
"""Events of a room that are taken in together."""
ROOMS_AT_ONCE = 8
POLL_SECONDS = 5.0
"""How often the database is asked for rooms that another process staged events of."""
RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""The waits of an event that lacks something; after the last one it is dropped."""

OnReceived = Callable[[str, Received], Awaitable[None]]
"""Told the room and what became of a batch, after it was stored."""


@dataclass(slots=True)
class _Waiting:
    """An event that was tried in vain: when it is tried next (monotonic), and how often it was."""

    due: float
    attempts: int


@dataclass(slots=True)
class _RoomWork:
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[str, _Waiting] = field(default_factory=dict)


class InboundQueue:
    """Takes staged events into their rooms, in the order of their arrival."""

    def __init__(self, *, database: Database, receiver: Receiver, on_received: OnReceived) -> None:
        self._database = database
        self._receiver = receiver
        self._on_received = on_received
        self._rooms: dict[str, _RoomWork] = {}
        self._slots = asyncio.Semaphore(ROOMS_AT_ONCE)
        self._is_running = False

    def wake(self, room_id: str) -> None:
        """Events of a room have been staged. Unless the queue runs, they wait for that."""
        if not self._is_running:
            return
        work = self._rooms.setdefault(room_id, _RoomWork())
        work.wake.set()
        work.idle.clear()
        if work.task is None:
            work.task = asyncio.create_task(self._work_on(room_id, work))

    async def run(self) -> None:
        """Looks after what is staged, until cancelled; what is under way is then rolled back."""
        self._is_running = True
        try:
            while True:
                await self._wake_staged()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._is_running = False
            tasks = [work.task for work in self._rooms.values() if work.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Waits until whatever is staged now was tried; `run` must be under way."""
        self._is_running = True
        await self._wake_staged()
        for work in list(self._rooms.values()):
            await work.idle.wait()

    async def _wake_staged(self) -> None:
        try:
            for room_id in await self._database.read(inbound.load_staged_rooms):
                if room_id not in self._rooms:
                    self.wake(room_id)
        except StorageError as error:
            logger.error("cannot look for staged events", error=str(error))

    async def _work_on(self, room_id: str, work: _RoomWork) -> None:
        try:
            await self._empty(room_id, work)
        except Exception:
            # What is staged stays so, and is found again at the next look at the database.
            logger.exception("events wait: an error of ours", room_id=room_id)
        finally:
            work.idle.set()
            del self._rooms[room_id]

    async def _empty(self, room_id: str, work: _RoomWork) -> None:
        """Empties the queue of one room; ends when nothing of it waits."""
        while True:
            work.wake.clear()
            now = time.monotonic()
            held = [event_id for event_id, w in work.waiting.items() if w.due > now]
            try:
                async with self._slots:
                    batch = await self._database.read(_load_batch, room_id, held)
                    if batch:
                        await self._take_in(room_id, work, batch)
                        continue
            except StorageError as error:
                logger.error("events wait: the database", room_id=room_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS[0])
                continue
            if work.wake.is_set():
                continue
            if not work.waiting:
                return
            work.idle.set()
            soonest = min(waiting.due for waiting in work.waiting.values())
            try:
                async with asyncio.timeout(max(0.0, soonest - time.monotonic())):
                    await work.wake.wait()
            except TimeoutError:
                pass

    async def _take_in(self, room_id: str, work: _RoomWork, batch: Sequence[StagedEvent]) -> None:
        room = (await self._database.read(inbound.load_receiving_rooms, [room_id])).get(room_id)
        origins: dict[str, str] = {}
        for staged in batch:
            origins.setdefault(staged.event_id, staged.origin)
        if room is None:
            await self._drop(room_id, work, list(origins), "no user of ours is in the room")
            return
        events: list[Event] = []
        unreadable: list[str] = []
        for staged in {staged.event_id: staged for staged in batch}.values():
            try:
                events.append(_event_of(staged, room.room_version))
            except (InvalidJson, InvalidEvent):
                unreadable.append(staged.event_id)
        if unreadable:
            await self._drop(room_id, work, unreadable, "it cannot be read")
        try:
            received = await self._receiver.take_in(room_id, events, origins)
        except NotInRoom:
            await self._drop(room_id, work, list(origins), "no user of ours is in the room")
            return
        except StorageError:
            raise
        except Exception:
            # A defect of ours: one event must not keep the others of its room waiting.
            logger.exception("events could not be taken in", room_id=room_id, events=len(events))
            if len(events) > 1:
                for staged in batch:
                    await self._take_in(room_id, work, [staged])
                return
            received = Received([], {}, [], [], dict.fromkeys(origins, "an error of ours"))
        await self._defer(room_id, work, received.deferred)
        for event_id in origins.keys() - received.deferred.keys():
            work.waiting.pop(event_id, None)
        if received.stored:
            # Whoever waited for one of these need not wait any longer.
            for waiting in work.waiting.values():
                waiting.due = min(waiting.due, time.monotonic() + RETRY_SECONDS[0])
            logger.info(
                "events received",
                room_id=room_id,
                stored=len(received.stored),
                rejected=len(received.rejected),
                soft_failed=len(received.soft_failed),
            )
            await self._on_received(room_id, received)

    async def _defer(self, room_id: str, work: _RoomWork, deferred: dict[str, str]) -> None:
        for event_id, reason in deferred.items():
            attempts = work.waiting[event_id].attempts if event_id in work.waiting else 0
            if attempts >= len(RETRY_SECONDS):
                await self._drop(room_id, work, [event_id], reason)
                continue
            pause = RETRY_SECONDS[attempts]
            work.waiting[event_id] = _Waiting(time.monotonic() + pause, attempts + 1)
            logger.info(
                "event waits", room_id=room_id, event_id=event_id, seconds=pause, reason=reason
            )

    async def _drop(
        self, room_id: str, work: _RoomWork, event_ids: Sequence[str], reason: str
    ) -> None:
        logger.warning("events dropped", room_id=room_id, events=len(event_ids), reason=reason)
        await self._database.run(inbound.delete_staged, room_id, event_ids)
        for event_id in event_ids:
            work.waiting.pop(event_id, None)


def _load_batch(connection: Connection, room_id: str, held: Sequence[str]) -> list[StagedEvent]:
    """The events that wait longest, with staged parents of theirs that came later."""
    batch = inbound.load_staged(connection, room_id, limit=BATCH_SIZE, without=held)
    if len(batch) < BATCH_SIZE:
        return batch
    room = inbound.load_receiving_rooms(connection, [room_id]).get(room_id)
    if room is None:
        return batch
    events = []
    for staged in batch:
        try:
            events.append(_event_of(staged, room.room_version))
        except (InvalidJson, InvalidEvent):
            continue
    seen = {staged.event_id for staged in batch}
    parents = missing_parents(events, ())
    return batch + [
        staged
        for staged in inbound.load_staged_events(connection, room_id, parents)
        if staged.event_id not in seen
    ]


def _event_of(staged: StagedEvent, room_version: str) -> Event:
    return Event.from_pdu(
        parse_json(staged.json), room_version, event_id=staged.event_id, json_text=staged.json
    )
