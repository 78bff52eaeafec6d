"""How the demo tells its story."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from federation.events import StateKey
from federation.simulator import RoomBuilder
from resync.demo.errors import DemoFailed
from resync.progress_display import display_for
from resync.worker import Worker
from storage import current_state
from storage.database import Database


class Narrator:
    """Chapters of lines, and what every chapter about a room tells in the same way."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def chapter(self, title: str) -> None:
        """A new chapter."""
        self._out.write(f"\n== {title}\n")
        self._out.flush()

    def say(self, line: str) -> None:
        """A line of the chapter."""
        self._out.write(f"   {line}\n")
        self._out.flush()

    async def follow(self, worker: Worker, room: RoomBuilder) -> None:
        """Shows the progress of a room until it is fully stated."""
        started = time.monotonic()
        async with worker.progress.subscribe() as changes:
            with display_for(self._out) as display:
                async for progress in changes:
                    if progress.room_id == room.room_id:
                        display.show(progress)
                        if progress.finished:
                            break
        self.say(f"The room was fully stated after {time.monotonic() - started:.2f} s.")

    async def compare(
        self, database_url: str, room: RoomBuilder, newest: str
    ) -> Mapping[StateKey, str]:
        """The current state of a room, which is as the simulated room is after `newest`.

        Raises:
            DemoFailed: it is not.
        """
        database = Database(database_url)
        try:
            state = await database.read(current_state.load_current_state, room.room_id)
        finally:
            await database.close()
        expected = room.state_after(newest)
        if dict(state) != dict(expected):
            keys = state.keys() | expected.keys()
            different = sum(state.get(key) != expected.get(key) for key in keys)
            raise DemoFailed(f"{different} state entries are not those of the simulated room")
        self.say("The state equals the room's true state, event id by event id.")
        return state
