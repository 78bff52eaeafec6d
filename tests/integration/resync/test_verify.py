"""Checks in processes of their own, with the keys of a real key ring."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psutil
import pytest

from federation.canonical_json import encode
from federation.checks import VerifyKey
from federation.client import RawPdu
from federation.keys import FetchedKeys, KeyRing
from federation.room_versions import get_room_version
from federation.signing import SigningKey, generate_signing_key, sign_event
from federation.tls import client_tls_context
from federation.transport import Transport, open_transport
from resync.admin.metrics import Metrics
from resync.check_process import NICENESS
from resync.verify import CheckPool, PduVerifier
from storage.database import Database
from storage.keys import DatabaseKeyStore

ROOM = "!room:a.org"
KEY = generate_signing_key()
VALID_UNTIL = 2_000


class AskedKeyRing(KeyRing):
    """Remembers what it was asked for."""

    def __init__(self, transport: Transport, database: Database) -> None:
        own = {("a.org", KEY.key_id): VerifyKey(KEY.verify_key, VALID_UNTIL)}
        super().__init__(transport, DatabaseKeyStore(database), own_keys=own)
        self.asked: list[dict[tuple[str, str], int]] = []

    async def fetch(self, needed: Mapping[tuple[str, str], int]) -> FetchedKeys:
        self.asked.append(dict(needed))
        return await super().fetch(needed)


@pytest.fixture
async def pool() -> AsyncIterator[CheckPool]:
    pool = CheckPool(2)
    yield pool
    await pool.close()


@pytest.fixture
async def key_ring(sqlite_database: Database, transport: Transport) -> AskedKeyRing:
    return AskedKeyRing(transport, sqlite_database)


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = open_transport(tls=client_tls_context(verify_certificates=False))
    yield transport
    await transport.close()


@pytest.fixture
def verifier(key_ring: AskedKeyRing, pool: CheckPool) -> PduVerifier:
    return PduVerifier(key_ring, pool, Metrics())


def message(number: int, timestamp: int = 1_000, key: SigningKey = KEY) -> RawPdu:
    pdu: dict[str, Any] = {
        "type": "m.room.message",
        "room_id": ROOM,
        "sender": "@a:a.org",
        "content": {"body": f"message {number}"},
        "depth": number,
        "origin_server_ts": timestamp,
        "auth_events": [],
        "prev_events": [],
    }
    signed = sign_event(pdu, get_room_version("10"), "a.org", key)
    return RawPdu(signed, encode(signed).decode())


async def test_a_large_batch_is_checked_in_other_processes(
    verifier: PduVerifier, pool: CheckPool
) -> None:
    await pool.warm_up()
    checking = [p for p in psutil.Process().children(recursive=True) if p.nice() == NICENESS]
    assert 1 <= len(checking) <= 2
    before = sum(p.cpu_times().user for p in checking)
    pdus = [message(number) for number in range(1_500)]
    pdus[9] = message(9, key=generate_signing_key())
    checked = await verifier.verify(pdus, room_version="10", room_id=ROOM)
    assert len(checked.events) == 1_499
    assert checked.event_ids[9] is None
    assert [dropped.event_id is not None for dropped in checked.dropped] == [True]
    assert sum(p.cpu_times().user for p in checking) > before


async def test_a_killed_process_is_replaced(verifier: PduVerifier, pool: CheckPool) -> None:
    await pool.warm_up()
    for process in psutil.Process().children(recursive=True):
        if process.nice() == NICENESS:
            os.kill(process.pid, signal.SIGKILL)
    pdus = [message(number) for number in range(200)]
    checked = await verifier.verify(pdus, room_version="10", room_id=ROOM)
    assert len(checked.events) == 200


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1_499, 1_501, 2_100])
async def test_each_pdu_of_a_batch_is_checked(verifier: PduVerifier, count: int) -> None:
    pdus = [message(number) for number in range(count)]
    checked = await verifier.verify(pdus, room_version="10", room_id=ROOM)
    assert [event.depth for event in checked.events] == list(range(count))


async def test_keys_are_asked_for_once(verifier: PduVerifier, key_ring: AskedKeyRing) -> None:
    for start in (0, 10, 20):
        pdus = [message(number) for number in range(start, start + 10)]
        checked = await verifier.verify(pdus, room_version="10", room_id=ROOM)
        assert len(checked.events) == 10
    assert key_ring.asked == [{("a.org", KEY.key_id): 1_000}]


async def test_a_key_that_is_not_valid_for_long_enough_is_asked_for_again(
    verifier: PduVerifier, key_ring: AskedKeyRing
) -> None:
    for timestamp, accepted in ((1_000, 1), (VALID_UNTIL + 1, 0), (VALID_UNTIL, 1)):
        checked = await verifier.verify([message(1, timestamp)], room_version="10", room_id=ROOM)
        assert len(checked.events) == accepted
    assert [list(asked.values()) for asked in key_ring.asked] == [[1_000], [VALID_UNTIL + 1]]
