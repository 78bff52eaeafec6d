"""Questions about rooms, asked of the database: for the command line and the admin API.

Any process can ask, whether a worker runs in it or not.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from resync.config import Config
from resync.status import TriggerResult
from storage import jobs
from storage.database import Database
from storage.jobs import Job, JobPage, JobState

WaitForRoom = Callable[[str, float], Awaitable[bool]]
"""Waits until a room is not partial, at most so many seconds; False: it still is."""


class Rooms:
    """The jobs of all rooms."""

    def __init__(self, database: Database, *, lease_ttl_seconds: float) -> None:
        self._database = database
        self._lease_ttl_ms = int(lease_ttl_seconds * 1000)

    async def list_rooms(self, from_token: str | None, limit: int) -> JobPage:
        """A page of jobs, oldest first. Raises ValueError if the token is none of ours."""
        return await self._database.read(
            jobs.list_rooms, _now_ms(), from_token, limit, self._lease_ttl_ms
        )

    async def load_room(self, room_id: str) -> Job | None:
        """The job of one room; None if it was never partially joined here."""
        return await self._database.read(jobs.load_room, room_id, _now_ms(), self._lease_ttl_ms)

    async def trigger(self, room_id: str) -> TriggerResult:
        """Make the next attempt due now."""
        if await self._database.run(jobs.trigger, room_id, now_ms=_now_ms()):
            return TriggerResult.QUEUED
        known = await self.load_room(room_id) is not None
        return TriggerResult.NOT_PARTIAL if known else TriggerResult.UNKNOWN_ROOM

    async def count_by_state(self) -> dict[JobState, int]:
        """How many rooms there are in each state."""
        return await self._database.read(
            jobs.count_jobs, now_ms=_now_ms(), lease_ttl_ms=self._lease_ttl_ms
        )


class WorkerRooms(Rooms):
    """The same in a running worker: it wakes at once when a room is triggered or finished."""

    def __init__(
        self,
        database: Database,
        *,
        lease_ttl_seconds: float,
        wait: WaitForRoom,
        wake: Callable[[], None],
    ) -> None:
        """`wait` waits for one room; `wake` makes the worker look for rooms that are due."""
        super().__init__(database, lease_ttl_seconds=lease_ttl_seconds)
        self._wait = wait
        self._wake = wake

    async def trigger(self, room_id: str) -> TriggerResult:
        """Make the next attempt due now, and look for it."""
        result = await super().trigger(room_id)
        if result is TriggerResult.QUEUED:
            self._wake()
        return result

    async def wait_for_room(self, room_id: str, seconds: float) -> Job | None:
        """The job once the room is fully stated, or as it is after `seconds`."""
        await self._wait(room_id, seconds)
        return await self.load_room(room_id)


@asynccontextmanager
async def open_rooms(config: Config) -> AsyncIterator[Rooms]:
    """The rooms in the database of the config. Raises SchemaOutOfDate, DatabaseUnavailable."""
    database = Database(config.database, pool_size=2)
    try:
        yield Rooms(database, lease_ttl_seconds=config.resync.lease_ttl_seconds)
    finally:
        await database.close()


def _now_ms() -> int:
    return int(time.time() * 1000)
