"""`resync trigger`: forget the backoff of a room."""

from __future__ import annotations

from typing import TextIO

from resync.config import Config
from resync.errors import ResyncError
from resync.rooms import open_rooms
from resync.status import TriggerResult


class CannotTrigger(ResyncError):
    """The room is not one that can be resynced."""


async def trigger(config: Config, room_id: str, *, out: TextIO) -> int:
    """Make the room due now; whichever worker is free takes it. Raises `CannotTrigger`."""
    async with open_rooms(config) as rooms:
        result = await rooms.trigger(room_id)
    if result is TriggerResult.UNKNOWN_ROOM:
        raise CannotTrigger(f"{room_id} is not a room that was partially joined here")
    if result is TriggerResult.NOT_PARTIAL:
        raise CannotTrigger(f"{room_id} is fully stated: there is nothing to resync")
    out.write(f"{room_id} is due now: a running worker takes it within a second.\n")
    return 0
