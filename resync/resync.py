"""One resync of one room, from partial state to the announcement."""

from __future__ import annotations

import structlog

from resync.admin.metrics import Metrics
from resync.complete import complete_room
from resync.progress import Phase
from resync.room_to_fetch import RoomToFetch
from resync.room_writer import RoomChanged, RoomWriter
from resync.state.batch import Resolver
from resync.state_fetch import Report, StateFetcher
from resync.walk.walk import Walk
from storage.database import Database
from storage.partial_state import RoomStillPartial

logger = structlog.get_logger(__name__)


async def resync_room(
    room: RoomToFetch,
    *,
    database: Database,
    fetcher: StateFetcher,
    writer: RoomWriter,
    report: Report,
    metrics: Metrics,
    resolver: Resolver,
) -> None:
    """Walks the room's partial events until there are none and completes it.

    Everything it has found is committed as it goes, so it can be stopped at any moment and run
    again.

    Raises:
        NoServerAnswered, KeysMissingForNow: a state could not be had, or not be checked, for now.
        LeaseLost: another worker has the room.
    """
    while True:
        walk = Walk(
            room,
            database=database,
            fetcher=fetcher,
            writer=writer,
            report=report,
            metrics=metrics,
            resolver=resolver,
        )
        walked = await walk.run()
        report(Phase.COMPLETE, 0, 0)
        try:
            await complete_room(
                room.room_id,
                room.room_version,
                walked,
                database=database,
                writer=writer,
                metrics=metrics,
            )
        except (RoomStillPartial, RoomChanged):
            logger.info("events arrived while the room was being completed; walking again")
            continue
        return
