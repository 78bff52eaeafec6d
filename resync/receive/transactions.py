"""Transactions of other servers: checked, bounded, staged, and answered once.

Source: server-server API, "Transactions"; checks 1 to 3 of "Checks performed on receipt of a PDU".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import Connection

from federation.client import RawPdu
from federation.events import Event, StateKey
from federation.inbound import RequestRefused, Transaction, is_allowed_by_acl
from resync.admin.metrics import Metrics
from resync.receive.order import NO_PREV_EVENTS
from resync.verify import PduVerifier
from storage import current_state, inbound
from storage import events as event_store
from storage.database import Database
from storage.errors import StorageError
from storage.inbound import ReceivingRoom, StagedEvent

logger = structlog.get_logger(__name__)

TRANSACTIONS_PER_ORIGIN = 5
"""Transactions of one server that are handled or wait at the same time; it is told to wait."""
TRANSACTIONS_AT_ONCE = 50
"""Transactions that are handled at the same time, one of each server: some wait for keys."""
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
        metrics: Metrics,
        wake: Callable[[str, str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake(room_id, origin)` is called when events of a room were staged."""
        self._database = database
        self._verifier = verifier
        self._metrics = metrics
        self._wake = wake
        self._clock = clock
        self._of_origin: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(TRANSACTIONS_AT_ONCE)
        self._forgotten_ms = 0

    async def receive(self, origin: str, transaction: Transaction) -> str:
        """The answer to a transaction whose sender is known, as JSON; events are then staged.

        It has the events of rooms that we are in: an empty object for one that is staged, an
        `error` for one that is refused. Ephemeral units (EDUs) are counted and not looked at:
        typing, receipts and devices are for the homeserver that users talk to.

        Raises:
            RequestRefused: 429, too much of this server is waiting.
        """
        if self._of_origin[origin] >= TRANSACTIONS_PER_ORIGIN:
            self._metrics.inbound_transaction("limited")
            raise _too_much()
        self._of_origin[origin] += 1
        lock = self._locks.setdefault(origin, asyncio.Lock())
        try:
            async with lock, self._slots:
                return await self._receive(origin, transaction)
        except StorageError as error:
            self._metrics.inbound_transaction("failed")
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
            self._metrics.inbound_transaction("repeated")
            return answered
        if await self._database.read(inbound.count_staged, origin) > MAX_STAGED_PER_ORIGIN:
            self._metrics.inbound_transaction("limited")
            raise _too_much()
        rooms = await self._database.read(inbound.load_receiving_rooms, list(transaction.pdus))
        denied = await self._database.read(_find_denying, list(rooms), origin)
        results: dict[str, dict[str, str]] = {}
        staged: list[StagedEvent] = []
        checked = await asyncio.gather(
            *(
                self._check(origin, room, transaction.pdus[room_id], room_id in denied, results)
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
        self._count(transaction, results, len(staged))
        for room_id in {event.room_id for event in staged}:
            self._wake(room_id, origin)
        await self._forget_old(now_ms)
        return response

    async def _check(
        self,
        origin: str,
        room: ReceivingRoom,
        pdus: list[RawPdu],
        is_denied: bool,
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
            if is_denied:
                reason = f"{origin} is denied by the room's server ACL"
            elif not event.prev_event_ids:
                # A create event comes with a join, never by itself.
                reason = NO_PREV_EVENTS
            if reason is None:
                accepted.append(event)
                results[event.event_id] = {}
            else:
                results[event.event_id] = {"error": reason}
        return accepted

    def _count(
        self, transaction: Transaction, results: Mapping[str, Mapping[str, str]], staged: int
    ) -> None:
        known = sum(len(transaction.pdus[room_id]) for room_id in transaction.pdus)
        refused = sum("error" in result for result in results.values())
        self._metrics.inbound_transaction("taken")
        self._metrics.inbound_pdus("refused", refused)
        self._metrics.inbound_pdus("ignored", max(0, known - refused - staged))
        self._metrics.inbound_edus(transaction.edus)

    async def _forget_old(self, now_ms: int) -> None:
        if now_ms - self._forgotten_ms > REMEMBERED_MS // 24:
            self._forgotten_ms = now_ms
            await self._database.run(
                inbound.delete_old_transactions, before_ms=now_ms - REMEMBERED_MS
            )


def _find_denying(connection: Connection, room_ids: list[str], origin: str) -> set[str]:
    """Those of `room_ids` whose server ACL denies `origin`. Strangers write ACLs of any length."""
    found = current_state.load_entry_of_rooms(connection, room_ids, SERVER_ACL)
    loaded = event_store.load_events(connection, list(found.values()))
    return {
        room_id
        for room_id, event_id in found.items()
        if event_id in loaded and not is_allowed_by_acl(origin, loaded[event_id].event.content)
    }


def _too_much() -> RequestRefused:
    return RequestRefused(
        429,
        "M_LIMIT_EXCEEDED",
        "Too much of this server is waiting here; send it again later",
        retry_after_ms=RETRY_AFTER_MS,
    )
