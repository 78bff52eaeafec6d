"""`resync demo`: the whole story on a simulated federation, over real sockets on loopback.

Nothing is set up beforehand and nothing is left behind: the database, the keys and the
certificates are in a temporary directory, and every port is a free one.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

import yaml

from federation.signing import generate_signing_key, write_signing_key
from federation.simulator import Mix, RoomBuilder, SimulatedFederation
from federation.simulator.certificates import write_certificate
from federation.streaming import RawPdu
from resync.config import Config, load_config
from resync.errors import ResyncError
from resync.progress_display import display_for
from resync.worker import JoinResult, Worker
from storage import current_state, migrate
from storage.database import Database

MEMBERS = 5_000
LISTENING_SERVERS = 3
SILENT_SERVERS = 12
ROOM_VERSION = "11"
LATER_EVENTS = 5
_ANNOUNCEMENT_SECONDS = 10.0


class DemoFailed(ResyncError):
    """The demo did not end as it must."""


async def run_demo(out: TextIO) -> int:
    """Tell the story on `out`. Raises `DemoFailed` if the result is not what it must be."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resync-demo-") as name:
        async with SimulatedFederation(
            servers=LISTENING_SERVERS, unreachable=SILENT_SERVERS
        ) as simulated:
            story = _Story(simulated, Path(name), out)
            await story.tell()
    out.write(f"\nAll of this took {time.monotonic() - started:.1f} s.\n")
    return 0


class _Story:
    def __init__(self, simulated: SimulatedFederation, directory: Path, out: TextIO) -> None:
        self._simulated = simulated
        self._directory = directory
        self._out = out

    async def tell(self) -> None:
        room = await self._make_room()
        config = self._configure()
        await asyncio.to_thread(migrate.upgrade, config.database)
        async with Worker.open(config) as worker:
            joined = await self._join(worker, room, config.server_name)
            newest = await self._receive(worker, room)
            self._simulated.residents[0].faults.refuse("state_ids", times=1)
            async with _working(worker, config) as reader:
                await self._resync(worker, room)
                await self._count(config, room, joined, newest)
                await self._announce(reader, room, joined)

    def _chapter(self, title: str) -> None:
        self._out.write(f"\n== {title}\n")
        self._out.flush()

    def _say(self, line: str) -> None:
        self._out.write(f"   {line}\n")
        self._out.flush()

    async def _make_room(self) -> RoomBuilder:
        self._chapter("A federation on this machine")
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

    def _configure(self) -> Config:
        """A real configuration file, as an operator would write it."""
        certificate = write_certificate(self._directory)
        write_signing_key(self._directory / "signing.key", generate_signing_key())
        federation_port, replication_port, admin_port = _free_ports(3)
        path = self._directory / "resync.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "server_name": f"127.0.0.1:{federation_port}",
                    "instance_name": "demo",
                    "federation": {
                        "listen": {
                            "port": federation_port,
                            "tls_certificate_path": str(certificate.certificate),
                            "tls_private_key_path": str(certificate.private_key),
                        },
                        "verify_certificates": False,
                        "ip_range_allowlist": ["127.0.0.0/8"],
                        "trusted_key_servers": self._simulated.server_names[:1],
                    },
                    "replication": {"tcp": {"port": replication_port}},
                    "admin": {"port": admin_port},
                }
            ),
            encoding="utf-8",
        )
        return load_config(path, {})

    async def _join(self, worker: Worker, room: RoomBuilder, server_name: str) -> JoinResult:
        self._chapter("A partial join")
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
        self._chapter("Life in a partially stated room")
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
        self._chapter("The resync")
        self._say(
            "The server we joined through refuses to tell the state, so the others are asked."
        )
        started = time.monotonic()
        async with worker.progress.subscribe() as changes:
            with display_for(self._out) as display:
                async for progress in changes:
                    display.show(progress)
                    if progress.room_id == room.room_id and progress.finished:
                        break
        self._say(f"The room was fully stated after {time.monotonic() - started:.2f} s.")

    async def _count(
        self, config: Config, room: RoomBuilder, joined: JoinResult, newest: str
    ) -> None:
        self._chapter("The result")
        database = Database(config.database)
        try:
            state = await database.read(current_state.load_current_state, room.room_id)
        finally:
            await database.close()
        expected = room.state_after(newest)
        members = [event_id for (kind, _), event_id in state.items() if kind == "m.room.member"]
        memberships = Counter(room.events[event_id].membership for event_id in members)
        self._say(f"{len(state):,} entries in the state, {joined.state_events:,} before.")
        counts = ", ".join(f"{count:,} {name}" for name, count in memberships.most_common())
        self._say(f"{len(members):,} members: {counts}.")
        if dict(state) != dict(expected):
            different = sum(state.get(key) != event_id for key, event_id in expected.items())
            raise DemoFailed(f"{different} state entries are not those of the simulated room")
        self._say("The state equals the room's true state, event id by event id.")
        for resident in self._simulated.residents:
            asked = [
                asked.endpoint + (f" ({asked.status})" if asked.status >= 400 else "")
                for asked in resident.requests
            ]
            self._say(f"Requests to {resident.server_name}: {', '.join(asked) or 'none'}.")

    async def _announce(self, reader: _Reader, room: RoomBuilder, joined: JoinResult) -> None:
        self._chapter("What a reader of the replication streams received")
        await reader.wait_for("un_partial_stated_room", room.room_id)
        await reader.wait_for("caches", "get_partial_rooms")
        for line in reader.lines:
            self._say(line)
        if not any(joined.join_event_id in line for line in reader.lines):
            raise DemoFailed("the join event was not announced")


class _Reader:
    """A replication client: what a person would see who runs netcat against the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Condition()
        self.lines: list[str] = []

    async def run(self) -> None:
        """Ask for the streams, and keep every line but the keep-alives."""
        self._writer.write(b"NAME demo-reader\nREPLICATE\n")
        while line := await self._reader.readline():
            text = line.decode().rstrip("\n")
            if not text.startswith("PING "):
                async with self._changed:
                    self.lines.append(text)
                    self._changed.notify_all()

    async def wait_for(self, stream: str, row: str) -> None:
        """Wait for a row of a stream that has `row` in it. Raises `DemoFailed`."""

        def is_there() -> bool:
            return any(line.startswith(f"RDATA {stream} ") and row in line for line in self.lines)

        try:
            async with asyncio.timeout(_ANNOUNCEMENT_SECONDS), self._changed:
                await self._changed.wait_for(is_there)
        except TimeoutError as error:
            raise DemoFailed(f"no row of {stream} came for {row}") from error


@asynccontextmanager
async def _working(worker: Worker, config: Config) -> AsyncIterator[_Reader]:
    """The worker at work and a replication reader connected to it, until the block ends."""
    work = asyncio.create_task(worker.run())
    assert config.replication.tcp is not None
    streams = await _connect(config.replication.tcp.bind, config.replication.tcp.port, work)
    reader = _Reader(*streams)
    reading = asyncio.create_task(reader.run())
    body = asyncio.current_task()
    assert body is not None
    failed = False

    def ended(task: asyncio.Task[None]) -> None:
        nonlocal failed
        if not task.cancelled():
            failed = True
            body.cancel()

    # A worker that ends before the story does would leave it waiting for ever.
    work.add_done_callback(ended)
    try:
        yield reader
    except asyncio.CancelledError:
        if failed:
            raise DemoFailed(f"the worker ended: {work.exception()}") from work.exception()
        raise
    finally:
        work.remove_done_callback(ended)
        for task in (work, reading):
            task.cancel()
        await asyncio.gather(work, reading, return_exceptions=True)
        streams[1].close()


async def _connect(
    host: str, port: int, work: asyncio.Task[None]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as soon as the worker listens."""
    while True:
        try:
            return await asyncio.open_connection(host, port)
        except OSError:
            if work.done():
                work.result()
                raise
            await asyncio.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
