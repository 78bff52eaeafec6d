"""`resync status`: rooms, progress, last error, next attempt."""

from __future__ import annotations

import json
import time
from typing import TextIO

from resync.config import Config
from resync.errors import ResyncError
from resync.rooms import Rooms, open_rooms
from resync.status import job_to_json
from resync.status_text import describe_rooms
from storage.jobs import Job

_PAGE = 1000


class UnknownRoom(ResyncError):
    """A room that was never partially joined here."""


async def show_status(config: Config, room_id: str | None, *, as_json: bool, out: TextIO) -> int:
    """Print one room, or all of them. Raises `UnknownRoom`."""
    async with open_rooms(config) as rooms:
        found = await _load(rooms, room_id)
    if as_json:
        json.dump(
            {"rooms": [job_to_json(room) for room in found]}, out, indent=2, ensure_ascii=False
        )
        out.write("\n")
    else:
        out.write(describe_rooms(found, int(time.time() * 1000)))
    return 0


async def _load(rooms: Rooms, room_id: str | None) -> list[Job]:
    if room_id is not None:
        room = await rooms.load_room(room_id)
        if room is None:
            raise UnknownRoom(f"{room_id} is not a room that was partially joined here")
        return [room]
    found: list[Job] = []
    token = None
    while True:
        page = await rooms.list_rooms(token, _PAGE)
        found += page.jobs
        token = page.next_token
        if token is None:
            return found
