"""A server that lives through a partial join: it listens, receives, acts and is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import yarl

from federation.canonical_json import encode, parse_json
from federation.simulator import BuiltEvent, RoomBuilder, ServerIdentity, SimulatedFederation
from federation.simulator.certificates import write_certificate
from federation.x_matrix import authorization_header
from resync.worker import Worker
from tests.integration.resync.our_server import OurServer, free_port, until


class Life:
    """Our server beside a simulated federation.

    Attributes:
        ours: its config and database.
        server_name: with the port it listens on, so that the others reach it.
        worker: the worker that runs.
    """

    def __init__(self, directory: Path, database_url: str, simulated: SimulatedFederation) -> None:
        port = free_port()
        certificate = write_certificate(directory)
        self.server_name = f"127.0.0.1:{port}"
        self.simulated = simulated
        self.ours = OurServer(
            directory,
            database_url,
            simulated,
            server_name=self.server_name,
            federation={
                "listen": {
                    "port": port,
                    "tls_certificate_path": str(certificate.certificate),
                    "tls_private_key_path": str(certificate.private_key),
                }
            },
            resync={"backoff_min_seconds": 0.2, "backoff_max_seconds": 0.2},
        )
        self.alice = f"@alice:{self.server_name}"
        self.bob = f"@bob:{self.server_name}"
        self._worker: Worker | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        stack = contextlib.AsyncExitStack()
        self._stack = stack
        self._worker = await stack.enter_async_context(Worker.open(self.ours.config))
        task = asyncio.create_task(self._worker.run())
        stack.push_async_callback(_end, task)
        try:
            yield self._worker
        finally:
            await stack.aclose()

    async def stop(self) -> None:
        """Ends the worker that runs."""
        await self._stack.aclose()

    # -- the others -----------------------------------------------------------------------------

    def hold_resync(self) -> None:
        """Lets no resident tell the state of a room until `release_resync`."""
        for resident in self.simulated.residents:
            resident.faults.stall("state_ids")
            resident.faults.stall("state")

    def release_resync(self) -> None:
        for resident in self.simulated.residents:
            resident.faults.clear("state_ids")
            resident.faults.clear("state")

    async def join(self, room: RoomBuilder, user_id: str | None = None) -> str:
        """A partial join; returns the id of the join event."""
        joined = await self.worker.join(
            room.room_id, self.simulated.server_names[:1], user_id or self.alice
        )
        assert joined.partial
        return joined.join_event_id

    async def push(
        self, events: Sequence[BuiltEvent], *, by: int = 0, transaction_id: str | None = None
    ) -> dict[str, Any]:
        """Lets a resident send events to us, 50 in a transaction; returns the results."""
        results: dict[str, Any] = {}
        for start in range(0, len(events), 50):
            status, body = await self.simulated.residents[by].push(
                self.server_name, events[start : start + 50], transaction_id=transaction_id
            )
            assert status == 200, body
            results |= body["pdus"]
        return results

    async def receive(self, events: Sequence[BuiltEvent], *, by: int = 0) -> None:
        """`push`, and wait until the events are in the graph."""
        results = await self.push(events, by=by)
        assert results == {event.event_id: {} for event in events}
        await self.until_stored(events)

    async def request(
        self,
        sender: ServerIdentity,
        method: str,
        target: str,
        content: Any = None,
        **changes: str,
    ) -> tuple[int, Any]:
        """A signed request to us. `changes` replaces the header (`authorization`)."""
        header = authorization_header(
            sender.server_name, sender.key, self.server_name, method, target, content
        )
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                # As it was signed, not as the library would write it.
                yarl.URL(f"https://{self.server_name}{target}", encoded=True),
                data=None if content is None else encode(content),
                headers={"Authorization": changes.get("authorization", header)},
                ssl=False,
            ) as response,
        ):
            return response.status, parse_json(await response.read())

    # -- the database ---------------------------------------------------------------------------

    async def until_stored(self, events: Sequence[BuiltEvent]) -> None:
        wanted = {event.event_id for event in events}
        await until(lambda: wanted <= self.graph())

    async def until_full(self, room: RoomBuilder) -> None:
        """Waits until the room is fully stated and everything that came is stored."""
        assert await self.worker.wait_until_complete(room.room_id, 120)
        await until(lambda: not self.staged())

    def graph(self) -> set[str]:
        """The events that are no outliers."""
        return set(
            self.ours.column("SELECT event_id FROM events WHERE outlier = :outlier", outlier=False)
        )

    def staged(self) -> list[str]:
        return self.ours.column("SELECT event_id FROM federation_inbound_events_staging")

    def partial_events(self) -> set[str]:
        return set(self.ours.column("SELECT event_id FROM partial_state_events"))

    def leases(self) -> list[str]:
        """The rooms that somebody is resyncing."""
        return self.ours.column("SELECT lock_key FROM worker_locks WHERE lock_name = 'resync_room'")

    def is_partial(self, room: RoomBuilder) -> bool:
        return room.room_id in self.ours.column("SELECT room_id FROM partial_state_rooms")

    def membership(self, room: RoomBuilder, user_id: str) -> str | None:
        rows = self.ours.query(
            "SELECT membership FROM local_current_membership"
            " WHERE room_id = :room_id AND user_id = :user_id",
            room_id=room.room_id,
            user_id=user_id,
        )
        return rows[0][0] if rows else None


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def target(endpoint: str, *segments: str) -> str:
    """The path of a federation endpoint."""
    return "/".join(["/_matrix/federation", endpoint, *(quote(s, safe="") for s in segments)])
