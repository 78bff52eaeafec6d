"""Transactions of other servers: checked, bounded, staged, and answered once.

Source: server-server API, "Transactions"; checks 1 to 3 of "Checks performed on receipt of a PDU".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from federation.client import RawPdu
from federation.events import Event, StateKey
from federation.inbound import RequestRefused, Transaction, is_allowed_by_acl
from resync.verify import PduVerifier
from storage import current_state, inbound
from storage import events as event_store
from storage.database import Database
from storage.errors import StorageError
from storage.inbound import ReceivingRoom, StagedEvent

logger = structlog.get_logger(__name__)

TRANSACTIONS_PER_ORIGIN = 5
"""Transactions of one server that are handled or wait at the same time; it is told to wait."""
TRANSACTIONS_AT_ONCE = 8
"""Transactions that are handled at the same time, of all servers."""
MAX_STAGED_PER_ORIGIN = 20_000
"""Events of one server that wait; beyond, the server is told to wait itself."""
RETRY_AFTER_MS = 5000
REMEMBERED_MS = 24 * 3600 * 1000
"""How long a transaction is remembered: servers repeat theirs within minutes or hours."""
SERVER_ACL = StateKey("m.room.server_acl", "")


class TransactionReceiver:
    """Answers `/send`."""

    def __init__(
        self,
        *,
        database: Database,
        verifier: PduVerifier,
        wake: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake(room_id)` is called when events of a room were staged."""
        self._database = database
        self._verifier = verifier
        self._wake = wake
        self._clock = clock
        self._of_origin: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(TRANSACTIONS_AT_ONCE)
        self._forgotten_ms = 0

    async def receive(self, origin: str, transaction: Transaction) -> str:
        """The answer to a transaction whose sender is known, as JSON; events are then staged.

        Raises:
            RequestRefused: 429, too much of this server is waiting.
        """
        if self._of_origin[origin] >= TRANSACTIONS_PER_ORIGIN:
            raise _too_much()
        self._of_origin[origin] += 1
        lock = self._locks.setdefault(origin, asyncio.Lock())
        try:
            async with lock, self._slots:
                return await self._receive(origin, transaction)
        except StorageError as error:
            logger.error("transaction not taken", origin=origin, error=str(error))
            raise RequestRefused(503, "M_UNKNOWN", "The database does not answer") from None
        finally:
            self._of_origin[origin] -= 1
            if not self._of_origin[origin]:
                del self._of_origin[origin], self._locks[origin]

    async def _receive(self, origin: str, transaction: Transaction) -> str:
        answered = await self._database.read(
            inbound.load_response, origin, transaction.transaction_id
        )
        if answered is not None:
            return answered
        if await self._database.read(inbound.count_staged, origin) > MAX_STAGED_PER_ORIGIN:
            raise _too_much()
        rooms = await self._database.read(inbound.load_receiving_rooms, list(transaction.pdus))
        acls = await self._database.read(_load_acls, list(rooms))
        results: dict[str, dict[str, str]] = {}
        staged: list[StagedEvent] = []
        checked = await asyncio.gather(
            *(
                self._check(origin, room, transaction.pdus[room_id], acls.get(room_id), results)
                for room_id, room in rooms.items()
            )
        )
        now_ms = int(self._clock() * 1000)
        for events in checked:
            staged += [
                StagedEvent(event.event_id, origin, event.room_id, now_ms, event.json)
                for event in events
            ]
        response = await self._database.run(
            inbound.store_transaction,
            origin,
            transaction.transaction_id,
            json.dumps({"pdus": results}),
            staged,
            now_ms=now_ms,
        )
        for room_id in rooms:
            self._wake(room_id)
        await self._forget_old(now_ms)
        return response

    async def _check(
        self,
        origin: str,
        room: ReceivingRoom,
        pdus: list[RawPdu],
        acl: Mapping[str, Any] | None,
        results: dict[str, dict[str, str]],
    ) -> list[Event]:
        """Checks 1 to 3 on the PDUs of one room; what is refused is noted in `results`."""
        checked = await self._verifier.verify(
            pdus, room_version=room.room_version, room_id=room.room_id
        )
        for dropped in checked.dropped:
            logger.warning("event dropped", origin=origin, reason=dropped.reason)
            if dropped.event_id is not None:
                results[dropped.event_id] = {"error": dropped.reason}
        accepted: list[Event] = []
        for event in checked.events:
            reason = event_store.unstorable_reason(event)
            if not is_allowed_by_acl(origin, acl):
                reason = f"{origin} is denied by the room's server ACL"
            if reason is None:
                accepted.append(event)
                results[event.event_id] = {}
            else:
                results[event.event_id] = {"error": reason}
        return accepted

    async def _forget_old(self, now_ms: int) -> None:
        if now_ms - self._forgotten_ms > REMEMBERED_MS // 24:
            self._forgotten_ms = now_ms
            await self._database.run(
                inbound.delete_old_transactions, before_ms=now_ms - REMEMBERED_MS
            )


def _load_acls(connection: Any, room_ids: list[str]) -> dict[str, Mapping[str, Any]]:
    """The content of each room's server ACL, where it has one."""
    found = current_state.load_entry_of_rooms(connection, room_ids, SERVER_ACL)
    loaded = event_store.load_events(connection, list(found.values()))
    return {
        room_id: loaded[event_id].event.content
        for room_id, event_id in found.items()
        if event_id in loaded
    }


def _too_much() -> RequestRefused:
    return RequestRefused(
        429,
        "M_LIMIT_EXCEEDED",
        "Too much of this server is waiting here; send it again later",
        retry_after_ms=RETRY_AFTER_MS,
    )
