"""`resync join`: a partial join, and perhaps the wait for the rest of the room.

A worker that is running makes the join and does the resync. Without one, this process does
both, serving the signing keys meanwhile: other servers need them to check the join.
"""

from __future__ import annotations

import asyncio
from typing import TextIO

from resync.admin.api import Joined
from resync.admin.client import find_worker
from resync.config import Config
from resync.errors import ResyncError
from resync.join_request import JoinRequest
from resync.progress_display import display_for
from resync.rooms import Rooms, open_rooms
from resync.status_text import progress_of
from resync.worker import Worker
from storage.jobs import Job

_POLL_SECONDS = 0.2


class RoomGone(ResyncError):
    """The room that was waited for is not there any more."""


async def join(
    config: Config, wish: JoinRequest, *, wait: bool, out: TextIO, progress_to: TextIO
) -> int:
    """Join, and with `wait` return only when the room is fully stated, whoever did it."""
    async with find_worker(config.admin) as running, open_rooms(config) as rooms:
        if running is None:
            return await _join_alone(config, wish, rooms, wait, out, progress_to)
        joined = await running.join(wish)
        _report(joined, out)
        if wait and joined.partial:
            _report_complete(await _show_until_complete(rooms, wish.room_id, progress_to), out)
    return 0


async def _join_alone(
    config: Config, wish: JoinRequest, rooms: Rooms, wait: bool, out: TextIO, progress_to: TextIO
) -> int:
    async with Worker.open(config) as worker:
        joined = await worker.join(wish.room_id, list(wish.via), wish.user_id)
        _report(joined, out)
        if not joined.partial:
            return 0
        if not wait:
            out.write("No worker is running: `resync worker` does the rest.\n")
            return 0
        work = asyncio.create_task(worker.run())
        watch = asyncio.create_task(_show_until_complete(rooms, wish.room_id, progress_to))
        try:
            # The worker runs until it is cancelled: if it ends first, it has failed.
            done, _ = await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch not in done:
                await work
            _report_complete(await watch, out)
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
    return 0


def _report(joined: Joined, out: TextIO) -> None:
    kind = "partially" if joined.partial else "in full"
    out.write(
        f"Joined {joined.room_id} {kind}: {joined.state_events} state events, "
        f"{joined.servers} servers, join event {joined.join_event_id}\n"
    )
    out.flush()


def _report_complete(room: Job, out: TextIO) -> None:
    out.write(f"{room.room_id} is fully stated.\n")
    if room.given_up:
        out.write(f"No server could deliver {len(room.given_up)} of its events.\n")


async def _show_until_complete(rooms: Rooms, room_id: str, progress_to: TextIO) -> Job:
    """Show the progress that is in the database, whoever makes it, until the room is done.

    Raises `RoomGone`.
    """
    with display_for(progress_to) as display:
        while True:
            room = await rooms.load_room(room_id)
            if room is None:
                raise RoomGone(f"{room_id} was left or purged before it was fully stated")
            display.show(progress_of(room))
            if room.state == "complete":
                return room
            await asyncio.sleep(_POLL_SECONDS)
