"""Progress in the database, so that every process can show it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

import structlog
from sqlalchemy import Connection

from resync.progress import Phase, ProgressBoard, RoomProgress
from storage import jobs
from storage.database import Database
from storage.errors import StorageError

logger = structlog.get_logger(__name__)

INTERVAL_SECONDS = 0.5
"""How often progress is written; what happens in between is not."""


class ProgressRecorder:
    """Writes what is on the board to the jobs, the rooms of one interval in one transaction."""

    def __init__(self, board: ProgressBoard, database: Database) -> None:
        self._board = board
        self._database = database
        self._changed: dict[str, RoomProgress] = {}

    async def run(self) -> None:
        """Records until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._collect())
            group.create_task(self._write())

    async def _collect(self) -> None:
        async with self._board.subscribe() as changes:
            async for progress in changes:
                # These two are recorded with what they come from: the failure, the completion.
                if progress.phase not in (Phase.BACKOFF, Phase.DONE):
                    self._changed[progress.room_id] = progress

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            changed, self._changed = self._changed, {}
            if not changed:
                continue
            try:
                await self._database.run(_record, changed.values(), int(time.time() * 1000))
            except StorageError as error:
                logger.warning("cannot record progress; trying again", error=str(error))


def _record(connection: Connection, changed: Collection[RoomProgress], now_ms: int) -> None:
    for progress in changed:
        jobs.record_progress(
            connection,
            progress.room_id,
            now_ms=now_ms,
            phase=progress.phase,
            done=progress.done,
            total=progress.total or None,
        )
