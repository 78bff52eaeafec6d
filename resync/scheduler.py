"""Which room is resynced when, and by whom.

A room is due when its job says so; a worker that wants it takes a lease on it, renews the lease
while it works, and hands it back. A room that fails waits, longer each time, and is never given
up. All of it is in the database, so any worker can go on where another stopped.
Source: design, section 7.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection

from federation.errors import FederationError
from resync.admin.metrics import Metrics
from resync.backoff import wait_seconds
from resync.config import ResyncConfig
from resync.errors import NoServerAnswered, ResyncError
from resync.progress import Phase, ProgressBoard
from storage import jobs, leases
from storage.database import Database
from storage.errors import DatabaseUnavailable, LeaseLost, RoomNotPartial, StorageError

logger = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
"""How often the database is asked for due rooms; triggers from other processes wait this long."""

ResyncRoom = Callable[[str, Callable[[Connection], None]], Awaitable[None]]
"""Resyncs a room. Its second argument raises LeaseLost inside a transaction of another's room."""


@dataclass(slots=True)
class _HeldRoom:
    token: str
    task: asyncio.Task[None] | None = None
    lost: bool = field(default=False)


class Scheduler:
    """Resyncs due rooms, several at once, under one lease each."""

    def __init__(
        self,
        resync_room: ResyncRoom,
        *,
        database: Database,
        instance_name: str,
        settings: ResyncConfig,
        board: ProgressBoard,
        metrics: Metrics,
        beat: Callable[[], None],
    ) -> None:
        """`beat` is called at every turn of the loop, to show that it is alive."""
        self._resync_room = resync_room
        self._database = database
        self._instance_name = instance_name
        self._settings = settings
        self._board = board
        self._metrics = metrics
        self._beat = beat
        self._held: dict[str, _HeldRoom] = {}
        self._wake = asyncio.Event()

    @property
    def _lease_ttl_ms(self) -> int:
        return int(self._settings.lease_ttl_seconds * 1000)

    def wake(self) -> None:
        """Something may be due: look at once."""
        self._wake.set()

    def stop(self, room_id: str) -> None:
        """The room was left or purged: whoever works on it here stops."""
        held = self._held.get(room_id)
        if held is not None and held.task is not None:
            held.lost = True
            held.task.cancel()

    async def run(self, *, once: bool = False) -> None:
        """Works until cancelled or, with `once`, until nothing is due and nothing is running.

        When it ends, for whatever reason, the rooms it holds are handed back.
        """
        renewal = asyncio.create_task(self._renew_leases())
        try:
            while True:
                self._beat()
                self._wake.clear()
                started = await self._start_due_rooms()
                if once and not started and not self._held:
                    return
                await self._sleep()
        finally:
            renewal.cancel()
            tasks = [held.task for held in self._held.values() if held.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(renewal, *tasks, return_exceptions=True)

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _start_due_rooms(self) -> int:
        free = self._settings.concurrent_rooms - len(self._held)
        if free <= 0:
            return 0
        try:
            claimed = await self._database.run(self._claim, free)
        except StorageError as error:
            logger.error("cannot look for due rooms; trying again", error=str(error))
            return 0
        for room_id, token in claimed.items():
            held = self._held[room_id] = _HeldRoom(token)
            held.task = asyncio.create_task(self._work_on(room_id, held))
            self._metrics.lease("acquired")
        self._metrics.leases_held(len(self._held))
        return len(claimed)

    def _claim(self, connection: Connection, count: int) -> dict[str, str]:
        """Takes leases on up to `count` rooms that are due; returns their tokens."""
        now_ms = int(time.time() * 1000)
        claimed: dict[str, str] = {}
        leases.forget_expired(connection, now_ms, self._lease_ttl_ms)
        # A Synapse beside us makes partial joins of its own.
        jobs.create_missing_jobs(connection, now_ms=now_ms)
        for room_id in jobs.load_due_rooms(
            connection, now_ms=now_ms, lease_ttl_ms=self._lease_ttl_ms, limit=count
        ):
            token = secrets.token_hex(8)
            if room_id not in self._held and leases.acquire(
                connection, room_id, self._instance_name, token, now_ms, self._lease_ttl_ms
            ):
                claimed[room_id] = token
        return claimed

    async def _work_on(self, room_id: str, held: _HeldRoom) -> None:
        structlog.contextvars.bind_contextvars(room_id=room_id, job_id=held.token)
        started = time.monotonic()
        logger.info("resync started")

        def assert_lease(connection: Connection) -> None:
            leases.assert_held(connection, room_id, held.token)

        try:
            await self._resync_room(room_id, assert_lease)
        except LeaseLost:
            self._give_way(room_id)
        except RoomNotPartial:
            logger.info("the room was left, purged, or finished by another worker")
            self._metrics.attempt("abandoned")
            self._board.remove(room_id)
        except asyncio.CancelledError:
            if not held.lost:
                raise
            self._give_way(room_id)
        except (ResyncError, FederationError, DatabaseUnavailable) as error:
            await self._record_failure(room_id, error)
        except Exception as error:
            # A defect of ours must not take the other rooms down, nor leave this one stuck.
            logger.exception("unexpected error")
            await self._record_failure(room_id, error)
        else:
            logger.info("room is fully stated", seconds=round(time.monotonic() - started, 3))
            self._metrics.attempt("complete")
            self._board.update(room_id, Phase.DONE)
        finally:
            await self._hand_back(room_id, held)

    def _give_way(self, room_id: str) -> None:
        logger.warning("the lease is gone: another worker has the room, or it was left")
        self._metrics.attempt("lease_lost")
        self._board.remove(room_id)

    async def _record_failure(self, room_id: str, error: Exception) -> None:
        server = None
        if isinstance(error, NoServerAnswered) and error.failures:
            server = error.failures[0].server_name
        reason = str(error) or type(error).__name__
        self._metrics.attempt("backoff")

        def record(connection: Connection) -> int:
            now_ms = int(time.time() * 1000)
            job = jobs.load_room(connection, room_id, now_ms)
            wait = wait_seconds(
                job.attempts + 1 if job is not None else 1,
                minimum=self._settings.backoff_min_seconds,
                maximum=self._settings.backoff_max_seconds,
                random=random.random(),
            )
            next_attempt_ts = now_ms + int(wait * 1000)
            jobs.record_failure(
                connection,
                room_id,
                error=reason,
                server=server,
                next_attempt_ts=next_attempt_ts,
                now_ms=now_ms,
            )
            return next_attempt_ts

        try:
            next_attempt_ts = await self._database.run(record)
        except StorageError as failure:
            logger.error("cannot record why the room failed", error=str(failure), reason=reason)
            return
        seconds = max(0.0, next_attempt_ts / 1000 - time.time())
        logger.warning("resync failed; trying again", error=reason, in_seconds=round(seconds, 1))
        self._board.update(
            room_id, Phase.BACKOFF, detail=f"next attempt in {seconds:.0f} s: {reason}"
        )

    async def _hand_back(self, room_id: str, held: _HeldRoom) -> None:
        del self._held[room_id]
        self._metrics.leases_held(len(self._held))
        try:
            if await asyncio.shield(self._database.run(leases.release, room_id, held.token)):
                self._metrics.lease("released")
        except StorageError as error:
            logger.warning("cannot hand the lease back; it expires by itself", error=str(error))
        self.wake()

    async def _renew_leases(self) -> None:
        """Renews every lease well before it expires; a room whose lease is gone is let go."""
        while True:
            await asyncio.sleep(self._settings.lease_ttl_seconds / 3)
            tokens = {room_id: held.token for room_id, held in self._held.items()}
            if not tokens:
                continue
            try:
                kept = await self._database.run(leases.renew_all, tokens, int(time.time() * 1000))
            except StorageError as error:
                logger.warning("cannot renew leases; trying again", error=str(error))
                continue
            for room_id in tokens.keys() - kept:
                held = self._held.get(room_id)
                if held is not None and held.token == tokens[room_id] and held.task is not None:
                    held.lost = True
                    held.task.cancel()
                    self._metrics.lease("lost")
