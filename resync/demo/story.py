"""The demo from its beginning to its end: one room in detail, then a large one."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

from federation.simulator import Mix, RoomBuilder, SimulatedFederation
from federation.streaming import RawPdu
from resync.config import Config
from resync.demo.errors import DemoFailed
from resync.demo.large_room import SPARK, make_large_room, tell_of_large_room
from resync.demo.narrator import Narrator
from resync.demo.reader import Reader, working
from resync.demo.setting import configure
from resync.worker import JoinResult, Worker
from storage import migrate

MEMBERS = 2_000
LISTENING_SERVERS = 3
SILENT_SERVERS = 12
ROOM_VERSION = "11"
LATER_EVENTS = 5


async def run_demo(out: TextIO) -> int:
    """Tell the story on `out`. Raises `DemoFailed` if the result is not what it must be."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resync-demo-") as name:
        async with SimulatedFederation(
            servers=LISTENING_SERVERS, unreachable=SILENT_SERVERS
        ) as simulated:
            story = _Story(simulated, Path(name), Narrator(out))
            await story.tell()
    out.write(f"\nAll of this took {time.monotonic() - started:.1f} s.\n")
    return 0


class _Story:
    def __init__(self, simulated: SimulatedFederation, directory: Path, narrator: Narrator) -> None:
        self._simulated = simulated
        self._directory = directory
        self._narrator = narrator
        self._say = narrator.say

    async def tell(self) -> None:
        room = await self._make_room()
        config = configure(self._directory, self._simulated.server_names[:1], SPARK)
        await asyncio.to_thread(migrate.upgrade, config.database)
        async with Worker.open(config) as worker:
            joined = await self._join(worker, room, config.server_name)
            newest = await self._receive(worker, room)
            self._simulated.residents[0].faults.refuse("state_ids", times=1)
            # From here on Spark starts in the background.
            async with working(worker, config) as reader:
                await self._resync(worker, room)
                await self._count(config, room, joined, newest)
                await self._announce(reader, room, joined)
                large_room = await asyncio.to_thread(make_large_room, self._simulated)
                await tell_of_large_room(
                    self._narrator, worker, config, self._simulated, large_room
                )

    async def _make_room(self) -> RoomBuilder:
        self._narrator.chapter("A federation on this machine")
        room: RoomBuilder = await asyncio.to_thread(
            self._simulated.create_room, ROOM_VERSION, members=MEMBERS, mix=Mix(banned=0.02)
        )
        self._say(
            f"{LISTENING_SERVERS} homeservers listen on loopback, "
            f"{SILENT_SERVERS} more are in the room and do not answer."
        )
        self._say(
            f"{room.room_id} has room version {ROOM_VERSION}, {len(room.events):,} events and "
            f"{len(room.current_state()):,} entries in its state."
        )
        return room

    async def _join(self, worker: Worker, room: RoomBuilder, server_name: str) -> JoinResult:
        self._narrator.chapter("A partial join")
        user_id = f"@alice:{server_name}"
        started = time.monotonic()
        joined = await worker.join(room.room_id, self._simulated.server_names[:1], user_id)
        self._say(
            f"{user_id} joined in {time.monotonic() - started:.2f} s: the server left the members "
            f"out and sent {joined.state_events:,} state events."
        )
        self._say(f"{joined.servers} servers are known to be in the room.")
        if not joined.partial:
            raise DemoFailed("the join was not partial")
        return joined

    async def _receive(self, worker: Worker, room: RoomBuilder) -> str:
        """The room goes on while it is partial; returns the id of its newest event."""
        self._narrator.chapter("Life in a partially stated room")
        events = [room.message(f"Message {number}") for number in range(LATER_EVENTS - 1)]
        events.append(room.set_topic("What happened while the members were not known"))
        pdus = [RawPdu(room.pdu(event.event_id), event.text) for event in events]
        received = await worker.receiver.receive(room.room_id, pdus)
        self._say(
            f"{len(received.stored)} more events arrived. They were checked against the partial "
            "state, which the resync has to correct."
        )
        if len(received.stored) != LATER_EVENTS:
            raise DemoFailed(f"events were refused: {received.refused}")
        return events[-1].event_id

    async def _resync(self, worker: Worker, room: RoomBuilder) -> None:
        self._narrator.chapter("The resync")
        self._say(
            "The server we joined through refuses to tell the state, so the others are asked."
        )
        await self._narrator.follow(worker, room)

    async def _count(
        self, config: Config, room: RoomBuilder, joined: JoinResult, newest: str
    ) -> None:
        self._narrator.chapter("The result")
        state = await self._narrator.compare(config.database, room, newest)
        self._say(f"{len(state):,} entries in the state, {joined.state_events:,} before.")
        members = [event_id for (kind, _), event_id in state.items() if kind == "m.room.member"]
        memberships = Counter(room.events[event_id].membership for event_id in members)
        counts = ", ".join(f"{count:,} {name}" for name, count in memberships.most_common())
        self._say(f"{len(members):,} members: {counts}.")
        for resident in self._simulated.residents:
            asked = [
                asked.endpoint + (f" ({asked.status})" if asked.status >= 400 else "")
                for asked in resident.requests
            ]
            self._say(f"Requests to {resident.server_name}: {', '.join(asked) or 'none'}.")

    async def _announce(self, reader: Reader, room: RoomBuilder, joined: JoinResult) -> None:
        self._narrator.chapter("What a reader of the replication streams received")
        await reader.wait_for("un_partial_stated_room", room.room_id)
        await reader.wait_for("caches", "get_partial_rooms")
        for line in reader.lines:
            self._say(line)
        if not any(joined.join_event_id in line for line in reader.lines):
            raise DemoFailed("the join event was not announced")
