"""Checks 1 to 3 on batches of PDUs, off the event loop.

The checks themselves are pure (`federation.checks`); this module brings them the keys they need and
runs them where they hold nobody up: a thread for a handful of PDUs, a pool of processes for more.
Source: server-server API, "Checks performed on receipt of a PDU".
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

import structlog

from federation.checks import Outcome, PduCheck, VerifyKey, check_pdus, keys_needed
from federation.client import RawPdu
from federation.events import Event
from federation.keys import KeyRing
from federation.redaction import redact
from federation.room_versions import RoomVersion, get_room_version
from federation.signing import required_signers_of
from resync import check_process
from resync.admin.metrics import Metrics

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

SMALL_BATCH = 64
"""Up to this many PDUs a thread is faster than sending them to another process."""
CHUNK = 1000
"""How many PDUs are sent to a process at a time, half as many more or fewer."""
REMEMBERED_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class DroppedPdu:
    """A PDU that failed check 1 or 2.

    Attributes:
        is_uncheckable: nothing is wrong with it, but the key of its signature could not be had.
        may_pass_later: somebody who may have the key could not be reached.
    """

    event_id: str | None
    reason: str
    is_uncheckable: bool = False
    may_pass_later: bool = False


@dataclass(slots=True)
class CheckedPdus:
    """What is left of a batch after checks 1 to 3.

    Attributes:
        events: those that passed; an event whose content hash did not match is in its redacted
            form. In the order of the batch, each event id once.
        redacted: ids of the events that were redacted.
        dropped: the others, with the reason.
        event_ids: for each PDU of the batch the id of its event, None for one that was dropped.
    """

    events: list[Event] = field(default_factory=list)
    redacted: set[str] = field(default_factory=set)
    dropped: list[DroppedPdu] = field(default_factory=list)
    event_ids: list[str | None] = field(default_factory=list)

    def log_dropped(self, server: str) -> None:
        """Logs, in one line however many there are, what `server` sent that was dropped."""
        if self.dropped:
            logger.warning(
                "events dropped",
                server=server,
                count=len(self.dropped),
                first=self.dropped[0].event_id,
                reason=self.dropped[0].reason,
            )


class CheckPool:
    """Processes that run `check_pdus`.

    A pool that breaks (a process was killed) is replaced once per batch; if it breaks again, the
    batch is done in a thread of the worker's own process.
    """

    def __init__(self, processes: int) -> None:
        """`processes`: how many; 0 means that everything is done in threads."""
        self._processes = processes
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["federation.checks", check_process.__name__])
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor | None:
        if self._processes == 0:
            return None
        return ProcessPoolExecutor(
            self._processes, mp_context=self._context, initializer=check_process.prepare
        )

    async def warm_up(self) -> None:
        """Starts the processes, which takes a while, before there is something to check."""
        if self._pool is not None:
            # A process is started for each call that finds no idle one, so none may be too short.
            waits = [self._submit(self._pool, time.sleep, 0.1) for _ in range(self._processes)]
            await asyncio.gather(*waits)

    async def check(
        self,
        json_texts: Sequence[str],
        room_version: str,
        room_id: str,
        keys: Mapping[tuple[str, str], VerifyKey],
    ) -> list[PduCheck]:
        """`check_pdus` for one batch, without blocking the event loop."""
        if len(json_texts) > SMALL_BATCH:
            for _ in range(2):
                pool = self._pool
                if pool is None:
                    break
                try:
                    return await self._submit(
                        pool, check_pdus, json_texts, room_version, room_id, keys
                    )
                except BrokenProcessPool:
                    logger.warning("a checking process died; starting others")
                    self._replace(pool)
        return await asyncio.to_thread(check_pdus, json_texts, room_version, room_id, keys)

    async def _submit(
        self, pool: ProcessPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        # Submitting may start a process, which waits for it.
        running = await asyncio.to_thread(pool.submit, function, *args, **kwargs)
        return await asyncio.wrap_future(running)

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        # Several batches notice the same broken pool; only the first of them replaces it.
        if self._pool is broken:
            broken.shutdown(wait=False, cancel_futures=True)
            self._pool = self._new_pool()

    async def close(self) -> None:
        """Ends the processes; batches under way are finished."""
        if self._pool is not None:
            await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
            self._pool = None


class LargeBatchChecker(Protocol):
    """An engine for more PDUs than this machine's processes are the best place for."""

    def job_size(self, expected: int, room_id: str) -> int:
        """How many PDUs to gather for each `check`, of `expected`; 0 to do without this engine."""

    async def check(
        self,
        json_texts: Sequence[str],
        room_version: str,
        room_id: str,
        keys: Mapping[tuple[str, str], VerifyKey],
        *,
        report: Callable[[int, int], None] | None = None,
    ) -> list[PduCheck] | None:
        """`check_pdus`; None if the engine failed. `report`: told parts done and parts in all."""


class PduVerifier:
    """Checks 1 to 3 for PDUs of one room at a time, with keys from the key ring."""

    def __init__(
        self,
        key_ring: KeyRing,
        pool: CheckPool,
        metrics: Metrics,
        large: LargeBatchChecker | None = None,
    ) -> None:
        """`large`: an engine for large batches, if there is one."""
        self._keys = _RecentKeys(key_ring)
        self._pool = pool
        self._metrics = metrics
        self._large = large

    async def warm_up(self) -> None:
        """Makes ready for the first batch. Need not be waited for."""
        await self._pool.warm_up()

    def job_size(self, expected: int, room_id: str) -> int:
        """How many PDUs to gather for `verify_gathered`; 0: `verify` them as they come.

        `expected`: how many the room will send.
        """
        return 0 if self._large is None else self._large.job_size(expected, room_id)

    async def verify_gathered(
        self,
        batches: Sequence[Sequence[RawPdu]],
        *,
        room_version: str,
        room_id: str,
        report: Callable[[int, int], None] | None = None,
    ) -> list[CheckedPdus]:
        """`verify` for many batches at once, by the engine for large ones if it can.

        Returns one result for each batch. `report`: told parts done and parts in all.
        """
        version = get_room_version(room_version)
        pdus = [raw for batch in batches for raw in batch]
        checks: list[PduCheck] | None = None
        if self._large is not None:
            needed = await asyncio.to_thread(keys_needed, [raw.pdu for raw in pdus], version)
            keys = await self._keys.fetch(needed)
            checks = await self._large.check(
                [raw.json_text for raw in pdus], room_version, room_id, keys.found, report=report
            )
        if checks is None:
            return [
                await self.verify(batch, room_version=room_version, room_id=room_id)
                for batch in batches
            ]
        results, start = [], 0
        for batch in batches:
            of_batch = checks[start : start + len(batch)]
            results.append(
                await asyncio.to_thread(self._collect, batch, of_batch, version, keys.late)
            )
            start += len(batch)
        return results

    async def verify(
        self, pdus: Sequence[RawPdu], *, room_version: str, room_id: str
    ) -> CheckedPdus:
        """Checks `pdus`, which are said to belong to `room_id`.

        Keys that cannot be had make the events drop that need them; nothing is raised for what a
        PDU contains.
        """
        version = get_room_version(room_version)
        needed = await asyncio.to_thread(keys_needed, [raw.pdu for raw in pdus], version)
        keys = await self._keys.fetch(needed)
        # Equal parts: a small rest would be done in this process.
        size = max(1, math.ceil(len(pdus) / max(1, round(len(pdus) / CHUNK))))
        chunks = await asyncio.gather(
            *(
                self._pool.check(
                    [raw.json_text for raw in pdus[start : start + size]],
                    room_version,
                    room_id,
                    keys.found,
                )
                for start in range(0, len(pdus), size)
            )
        )
        checks = [check for chunk in chunks for check in chunk]
        return await asyncio.to_thread(self._collect, pdus, checks, version, keys.late)

    def _collect(
        self,
        pdus: Sequence[RawPdu],
        checks: Sequence[PduCheck],
        version: RoomVersion,
        late: Collection[str],
    ) -> CheckedPdus:
        """`late`: servers whose keys may be had later."""
        checked = CheckedPdus()
        seen: set[str] = set()
        for raw, check in zip(pdus, checks, strict=True):
            if check.outcome is Outcome.DROPPED:
                checked.dropped.append(DroppedPdu(check.event_id, check.reason))
                checked.event_ids.append(None)
                continue
            if check.outcome is Outcome.UNCHECKABLE:
                may_pass = not required_signers_of(raw.pdu, version).isdisjoint(late)
                checked.dropped.append(DroppedPdu(check.event_id, check.reason, True, may_pass))
                checked.event_ids.append(None)
                continue
            assert check.event_id is not None
            checked.event_ids.append(check.event_id)
            if check.event_id in seen:
                continue
            seen.add(check.event_id)
            if check.outcome is Outcome.REDACTED:
                checked.redacted.add(check.event_id)
                event = Event.from_pdu(
                    redact(raw.pdu, version), version.identifier, event_id=check.event_id
                )
            else:
                event = Event.from_pdu(
                    raw.pdu, version.identifier, event_id=check.event_id, json_text=raw.json_text
                )
            checked.events.append(event)
        self._count(checks)
        return checked

    def _count(self, checks: Sequence[PduCheck]) -> None:
        for outcome, count in Counter(check.outcome for check in checks).items():
            self._metrics.events_checked(outcome.value, count)


class _Keys(NamedTuple):
    """Keys for a batch, and the servers of which others may be had later."""

    found: Mapping[tuple[str, str], VerifyKey]
    late: Collection[str]


class _RecentKeys:
    """A key ring that remembers what it gave, so that the batches of a room ask it once."""

    def __init__(self, key_ring: KeyRing) -> None:
        self._key_ring = key_ring
        self._known: dict[tuple[str, str], VerifyKey] = {}

    async def fetch(self, needed: Mapping[tuple[str, str], int]) -> _Keys:
        """See `KeyRing.fetch`."""
        late: Collection[str] = ()
        found = {
            pair: key
            for pair, until in needed.items()
            if (key := self._known.get(pair)) is not None and key.valid_until_ts >= until
        }
        wanted = {pair: until for pair, until in needed.items() if pair not in found}
        if wanted:
            fetched = await self._key_ring.fetch(wanted)
            if len(self._known) + len(fetched) > REMEMBERED_KEYS:
                self._known.clear()
            self._known |= fetched
            found |= fetched
            late = fetched.missing_for_now
        return _Keys(found, late)
