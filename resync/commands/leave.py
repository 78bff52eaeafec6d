"""`resync leave` and `resync purge`: getting out of a room, and forgetting it.

As with `resync join`, a worker that is running does it; without one this process does.
"""

from __future__ import annotations

from typing import TextIO

from resync.admin.client import find_worker
from resync.config import Config
from resync.errors import ResyncError
from resync.worker import Worker


class NothingToPurge(ResyncError):
    """Nothing is known of the room."""


async def leave(config: Config, room_id: str, user_id: str, *, out: TextIO) -> int:
    """Let a user leave; the servers known to be in the room are told at once.

    Raises `ResyncError` if the user is not in the room.
    """
    async with find_worker(config.admin) as running:
        if running is not None:
            out.write(_left(user_id, room_id, await running.leave(room_id, user_id)))
            return 0
    async with Worker.open(config) as worker:
        event = await worker.departures.leave(room_id, user_id)
        out.write(_left(user_id, room_id, event.event_id))
        out.flush()
        unreached = await worker.send_queued()
        if unreached:
            out.write(
                f"{len(unreached)} servers could not be told: `resync worker` tries them again.\n"
            )
    return 0


async def purge(config: Config, room_id: str, *, out: TextIO) -> int:
    """Delete everything that is known of a room. Raises `NothingToPurge`."""
    async with find_worker(config.admin) as running:
        if running is not None:
            await running.purge(room_id)
            out.write(f"Purged {room_id}\n")
            return 0
    async with Worker.open(config) as worker:
        if not await worker.departures.purge(room_id):
            raise NothingToPurge(f"nothing is known of {room_id}")
    out.write(f"Purged {room_id}\n")
    return 0


def _left(user_id: str, room_id: str, event_id: str) -> str:
    return f"{user_id} left {room_id}: event {event_id}\n"
