"""Sending our events to other servers: in order, repeated until confirmed, across restarts.

Source: server-server API, "Transactions".
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence

import structlog
from sqlalchemy import Connection

from federation.canonical_json import parse_json
from federation.client import FederationClient
from federation.errors import FederationError
from resync.admin.metrics import Metrics
from storage import destinations, outgoing
from storage.database import Database
from storage.errors import StorageError
from storage.outgoing import OutgoingEvent

logger = structlog.get_logger(__name__)

MAX_PDUS = 50
DESTINATIONS_AT_ONCE = 20
POLL_SECONDS = 5.0
"""How often the database is asked for what another process queued."""
KEPT_MS = 14 * 24 * 3600 * 1000
"""After this time a server that never answered is not told any more."""


def transaction_id(events: Sequence[OutgoingEvent]) -> str:
    """The same for the same events, so that a repetition is known as one, even after a crash."""
    joined = "\n".join(event.event_id for event in events)
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


class EventSender:
    """Sends what is queued; servers do not wait for each other."""

    def __init__(self, *, database: Database, client: FederationClient, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._client = client
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(DESTINATIONS_AT_ONCE)

    def wake(self) -> None:
        """Events have been queued."""
        self._wake.set()

    async def is_back(self, server: str) -> None:
        """A server that was failing has spoken to us: it is tried again at once."""
        if await self._database.read(destinations.load_retry_times, [server]):
            await self._database.run(destinations.record_success, server)
            self.wake()

    async def run(self) -> None:
        """Sends until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self._start()
                except StorageError as error:
                    logger.error("cannot look for events to send", error=str(error))
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def send_once(self) -> list[str]:
        """One try at everything that is due, for who does not `run`.

        Returns:
            The servers that have not confirmed everything; a worker tries them again.
        """
        await self._start()
        await asyncio.gather(*self._tasks.values())
        return await self._database.read(outgoing.load_destinations)

    async def _start(self) -> None:
        now_ms = int(time.time() * 1000)
        servers = await self._database.read(outgoing.load_destinations)
        if not servers:
            return
        await self._database.run(outgoing.delete_old, before_ms=now_ms - KEPT_MS)
        retry_at = await self._database.read(destinations.load_retry_times, servers)
        for server in servers:
            if server not in self._tasks and retry_at.get(server, 0) <= now_ms:
                self._tasks[server] = asyncio.create_task(self._send_to(server))

    async def _send_to(self, server: str) -> None:
        try:
            async with self._slots:
                while batch := await self._database.read(
                    outgoing.load_batch, server, limit=MAX_PDUS
                ):
                    if not await self._send(server, batch):
                        return
            # What was queued after the last look is not for the next poll to find.
            self._wake.set()
        except StorageError as error:
            logger.error("events not sent", destination=server, error=str(error))
        finally:
            del self._tasks[server]

    async def _send(self, server: str, batch: Sequence[OutgoingEvent]) -> bool:
        now_ms = int(time.time() * 1000)
        try:
            refused = await self._client.send_transaction(
                server,
                transaction_id(batch),
                [parse_json(event.json) for event in batch],
                now_ms=now_ms,
            )
        except FederationError as error:
            self._metrics.outgoing_transaction("failed")
            schedule = await self._database.run(
                destinations.record_failure, server, now_ms=int(time.time() * 1000)
            )
            seconds = max(0.0, schedule.next_attempt_ts / 1000 - time.time())
            logger.warning(
                "events not sent; trying again",
                destination=server,
                error=str(error),
                in_seconds=round(seconds, 1),
            )
            return False
        for event_id, reason in refused.items():
            logger.warning("event refused", destination=server, event_id=event_id, reason=reason)
        await self._database.run(_confirm, server, [event.event_id for event in batch])
        refusals = sum(event.event_id in refused for event in batch)
        self._metrics.outgoing_transaction("sent")
        self._metrics.outgoing_pdus("refused", refusals)
        self._metrics.outgoing_pdus("accepted", len(batch) - refusals)
        logger.info("events sent", destination=server, events=len(batch))
        return True


def _confirm(connection: Connection, server: str, event_ids: Sequence[str]) -> None:
    destinations.record_success(connection, server)
    outgoing.confirm(connection, server, event_ids)
