"""One attempt to finish a room: what the scheduler runs while it holds the room's lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import Connection

from federation.keys import KeyRing
from resync.admin.metrics import Metrics
from resync.collector import Collector
from resync.errors import ResyncError
from resync.patience import RoomPatience, make_patience
from resync.progress import Phase, ProgressBoard
from resync.resync import resync_room
from resync.room_to_fetch import RoomToFetch
from resync.room_writer import Announcements, RoomWriter
from resync.spark.engine import SparkEngine
from resync.state.batch import InProcessResolver, Resolver
from resync.state_fetch import Report, StateFetcher
from storage import jobs, partial_state
from storage.database import Database
from storage.errors import RoomNotPartial


class LoadRoomToFetch(Protocol):
    """`resync.room_to_fetch.load_room_to_fetch`, for one server and its database."""

    def __call__(
        self,
        connection: Connection,
        room_id: str,
        room_version: str,
        patience: RoomPatience | None = None,
    ) -> RoomToFetch:
        """The room, with whom to ask."""


class Attempts:
    """Makes attempts to finish rooms, with the parts that they share."""

    def __init__(
        self,
        *,
        database: Database,
        key_ring: KeyRing,
        fetcher: StateFetcher,
        load_room_to_fetch: LoadRoomToFetch,
        is_removed: Callable[[str], Awaitable[bool]],
        announcements: Announcements,
        instance_name: str,
        spark: SparkEngine | None,
        board: ProgressBoard,
        metrics: Metrics,
        collector: Collector,
    ) -> None:
        """
        Args:
            is_removed: whether our last user was removed from the room; it is then cleared away.
            spark: None resolves everything in process.
            board: told the progress of every room.
        """
        self._database = database
        self._key_ring = key_ring
        self._fetcher = fetcher
        self._load_room_to_fetch = load_room_to_fetch
        self._is_removed = is_removed
        self._announcements = announcements
        self._instance_name = instance_name
        self._spark = spark
        self._board = board
        self._metrics = metrics
        self._collector = collector

    async def run(self, room_id: str, assert_lease: Callable[[Connection], None]) -> None:
        """Finishes a room, or fails and notes what patience that has cost.

        Args:
            assert_lease: called first in every transaction that writes.

        Raises:
            RoomNotPartial: there is nothing to do, or no user of ours is in the room any more.
            ResyncError: it has to be tried again.
        """
        patience = make_patience(*await self._database.read(jobs.load_patient_attempts, room_id))
        try:
            with self._collector.room():
                await self._resync(room_id, patience, assert_lease)
        except ResyncError:
            failed = jobs.PatientAttempts(
                int(patience.with_events.is_spent), int(patience.with_parents.is_spent)
            )
            if any(failed):
                await self._database.run(jobs.add_patient_attempts, room_id, failed)
            raise

    async def _resync(
        self, room_id: str, patience: RoomPatience, assert_lease: Callable[[Connection], None]
    ) -> None:
        room = await self._database.read(partial_state.load_partial_room, room_id)
        if room is None or room.room_version is None:
            raise RoomNotPartial(room_id)
        if await self._is_removed(room_id):
            raise RoomNotPartial(room_id)
        self._key_ring.forget_failures()

        def report(phase: str, done: int, total: int) -> None:
            self._board.update(room_id, phase, done, total)

        with self._resolver(room_id, report) as resolver:
            await resync_room(
                await self._database.read(
                    self._load_room_to_fetch, room_id, room.room_version, patience
                ),
                database=self._database,
                fetcher=self._fetcher,
                writer=RoomWriter(
                    room_id,
                    database=self._database,
                    announcements=self._announcements,
                    instance_name=self._instance_name,
                    assert_lease=assert_lease,
                ),
                report=report,
                metrics=self._metrics,
                resolver=resolver,
            )

    @contextmanager
    def _resolver(self, room_id: str, report: Report) -> Iterator[Resolver]:
        """What resolves states for one resync; what it still does afterwards is stopped."""
        if self._spark is None:
            yield InProcessResolver()
            return
        resolver = self._spark.resolver(
            room_id, lambda done, total: report(Phase.RESOLVE, done, total)
        )
        try:
            yield resolver
        finally:
            resolver.stop()
