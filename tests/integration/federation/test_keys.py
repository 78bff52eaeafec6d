"""The key ring against real servers and notaries on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from federation.checks import VerifyKey
from federation.key_responses import SEVEN_DAYS_MS
from federation.keys import KeyPair, KeyRing, KeyRingLimits, StoredKey, TrustedKeyServer
from federation.server import OldVerifyKey, key_response
from federation.signing import SigningKey, generate_signing_key, sign_json
from federation.tls import client_tls_context
from federation.transport import RetryPolicy, Transport, open_transport
from tests.integration.federation.loopback import (
    LOOPBACK,
    Certificates,
    DnsZone,
    dns_server,
    https_server,
)

NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000


class MemoryKeyStore:
    """A key store that keeps everything in a dict."""

    def __init__(self) -> None:
        self.keys: dict[KeyPair, StoredKey] = {}
        self.writes = 0

    async def load_keys(self, pairs: Collection[KeyPair]) -> dict[KeyPair, StoredKey]:
        return {pair: self.keys[pair] for pair in pairs if pair in self.keys}

    async def store_keys(self, keys: Sequence[StoredKey]) -> None:
        self.writes += 1
        self.keys.update({(key.server_name, key.key_id): key for key in keys})


@dataclass
class Homeserver:
    """One of many behind the same address."""

    name: str
    key: SigningKey
    old_keys: dict[str, OldVerifyKey] = field(default_factory=dict)
    answer: Any = None
    status: int = 200
    delay: float = 0.0
    asked: int = 0

    @property
    def pair(self) -> KeyPair:
        return self.name, self.key.key_id

    def published(self, now_ms: int) -> Any:
        if self.answer is not None:
            return self.answer
        return key_response(self.name, [self.key], self.old_keys, now_ms)


class Federation:
    """Homeservers `<name>.hs.test`, all on one port of loopback, and a key ring that asks them."""

    def __init__(self, transport: Transport, zone: DnsZone, port: int) -> None:
        self.transport = transport
        self.zone = zone
        self.port = port
        self.store = MemoryKeyStore()
        self.servers: dict[str, Homeserver] = {}
        self.queries: list[tuple[str, dict[str, Any]]] = []
        self.now = NOW
        self.busy = self.busiest = 0

    def add(self, label: str) -> Homeserver:
        self.zone.add(f"{label}.hs.test", "A", "127.0.0.1")
        server = Homeserver(f"{label}.hs.test:{self.port}", generate_signing_key())
        self.servers[server.name] = server
        return server

    def ring(self, *notaries: TrustedKeyServer | str, **kwargs: Any) -> KeyRing:
        return KeyRing(
            self.transport, self.store, notaries, clock=lambda: self.now / 1000, **kwargs
        )

    async def serve_own(self, request: web.Request) -> web.StreamResponse:
        server = self.servers[request.host]
        server.asked += 1
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(server.delay)
        finally:
            self.busy -= 1
        return web.json_response(server.published(self.now), status=server.status)

    async def serve_query(self, request: web.Request) -> web.StreamResponse:
        """As a notary: what it can have of each server, signed by itself too."""
        notary = self.servers[request.host]
        query = (await request.json())["server_keys"]
        self.queries.append((request.host, query))
        if notary.status != 200:
            return web.json_response({}, status=notary.status)
        found = [
            sign_json(self.servers[name].published(self.now), notary.name, notary.key)
            for name in query
            if name in self.servers and self.servers[name].status == 200
        ]
        return web.json_response({"server_keys": found})


@asynccontextmanager
async def make_federation(certificates: Certificates) -> AsyncIterator[Federation]:
    tls, trusted = certificates.make("*.hs.test")
    zone = DnsZone()
    made: Federation

    async def serve_own(request: web.Request) -> web.StreamResponse:
        return await made.serve_own(request)

    async def serve_query(request: web.Request) -> web.StreamResponse:
        return await made.serve_query(request)

    app = web.Application()
    app.router.add_get("/_matrix/key/v2/server", serve_own)
    app.router.add_post("/_matrix/key/v2/query", serve_query)
    async with dns_server(zone) as dns, https_server(app, tls) as port:
        transport = open_transport(
            tls=client_tls_context(ca_path=trusted),
            ip_range_allowlist=LOOPBACK,
            dns_resolver=dns,
            retries=RetryPolicy(attempts=1),
        )
        try:
            async with asyncio.timeout(30):
                made = Federation(transport, zone, port)
                yield made
        finally:
            await transport.close()


@pytest.fixture
async def federation(certificates: Certificates) -> AsyncIterator[Federation]:
    async with make_federation(certificates) as made:
        yield made


# -- from the server itself


async def test_keys_come_from_the_server_and_are_kept(federation: Federation) -> None:
    far = federation.add("far")
    far.old_keys["ed25519:old"] = OldVerifyKey(b"o" * 32, NOW - 5 * DAY)
    old = (far.name, "ed25519:old")
    ring = federation.ring()
    keys = await ring.fetch({far.pair: NOW, old: NOW - 6 * DAY})
    assert keys == {
        far.pair: VerifyKey(far.key.verify_key, NOW + DAY),
        old: VerifyKey(b"o" * 32, NOW - 5 * DAY),
    }
    assert keys.failures == {}
    stored = federation.store.keys[far.pair]
    assert stored[:6] == (*far.pair, far.key.verify_key, far.name, NOW, NOW + DAY)
    assert json.loads(stored.key_json) == far.published(NOW)
    assert await ring.fetch({far.pair: NOW, old: 0}) == keys
    # Another ring on the same store has no need to ask either.
    assert await federation.ring().fetch({far.pair: NOW}) == {far.pair: keys[far.pair]}
    assert far.asked == 1


async def test_nothing_needed_nothing_asked(federation: Federation) -> None:
    assert await federation.ring().fetch({}) == {}


async def test_our_own_keys_are_not_asked_for(federation: Federation) -> None:
    us = federation.add("us")
    own = {us.pair: VerifyKey(us.key.verify_key, NOW + DAY)}
    assert await federation.ring(own_keys=own).fetch({us.pair: NOW}) == own
    assert us.asked == 0
    assert federation.store.keys == {}


async def test_a_key_that_ran_out_is_fetched_again(federation: Federation) -> None:
    far = federation.add("far")
    ring = federation.ring()
    await ring.fetch({far.pair: NOW})
    federation.now += 3 * DAY
    keys = await ring.fetch({far.pair: federation.now})
    assert keys[far.pair].valid_until_ts == federation.now + DAY
    assert far.asked == 2


async def test_a_key_that_cannot_be_renewed_is_returned_as_it_is(federation: Federation) -> None:
    """Room versions up to 4 do not ask until when a key was valid."""
    far = federation.add("far")
    ring = federation.ring()
    await ring.fetch({far.pair: NOW})
    federation.now += 3 * DAY
    far.status = 500
    keys = await ring.fetch({far.pair: federation.now})
    assert keys == {far.pair: VerifyKey(far.key.verify_key, NOW + DAY)}


async def test_an_event_from_the_future_does_not_make_us_ask_for_ever(
    federation: Federation,
) -> None:
    far = federation.add("far")
    ring = federation.ring()
    for _ in range(5):
        keys = await ring.fetch({far.pair: NOW + 1000 * DAY})
        assert keys[far.pair].valid_until_ts <= NOW + SEVEN_DAYS_MS
    assert far.asked == 1


async def test_a_retired_key_loses_its_validity(federation: Federation) -> None:
    far = federation.add("far")
    ring = federation.ring()
    before = far.pair
    await ring.fetch({before: NOW})
    federation.now += DAY // 2
    far.old_keys[far.key.key_id] = OldVerifyKey(far.key.verify_key, NOW + 1000)
    far.key = generate_signing_key()
    keys = await ring.fetch({before: NOW, far.pair: federation.now})
    assert set(keys) == {before, far.pair}
    assert (await ring.fetch({before: 0}))[before].valid_until_ts == NOW + 1000


# -- failures


async def test_a_key_that_the_server_does_not_have(federation: Federation) -> None:
    far = federation.add("far")
    ring = federation.ring()
    for _ in range(3):
        keys = await ring.fetch({(far.name, "ed25519:other"): NOW})
        assert keys == {}
        assert keys.failures == {far.name: f"{far.name}: publishes no key ed25519:other"}
    assert far.asked == 1


async def test_servers_that_fail_do_not_hold_up_the_others(federation: Federation) -> None:
    good = federation.add("good")
    busy = federation.add("busy")
    busy.status = 503
    liar = federation.add("liar")
    liar.answer = key_response(good.name, [good.key], {}, NOW)
    forger = federation.add("forger")
    forger.answer = {**forger.published(NOW), "valid_until_ts": NOW + 2 * DAY}
    slow = federation.add("slow")
    slow.delay = 20.0
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{closed.getsockname()[1]}", "ed25519:1"
        missing = "missing.test:1", "ed25519:1"
        denied = "10.0.0.1:1", "ed25519:1"
        ring = federation.ring(limits=KeyRingLimits(server_timeout=0.5))
        pairs = [s.pair for s in (good, busy, liar, forger, slow)] + [refusing, missing, denied]
        keys = await ring.fetch(dict.fromkeys(pairs, NOW))
    assert set(keys) == {good.pair}
    reasons = keys.failures
    assert set(reasons) == {pair[0] for pair in pairs} - {good.name}
    assert "answered 503" in reasons[busy.name]
    assert f"not about {liar.name}" in reasons[liar.name]
    assert "wrong signature" in reasons[forger.name]
    assert "no keys in 0.5 s" in reasons[slow.name]
    assert "cannot connect" in reasons[refusing[0]]
    assert "has no address in DNS" in reasons[missing[0]]
    assert "deny list" in reasons[denied[0]]
    assert set(federation.store.keys) == {good.pair}


async def test_a_server_that_failed_is_left_alone_for_a_while(federation: Federation) -> None:
    far = federation.add("far")
    far.status = 500
    ring = federation.ring()
    assert "answered 500" in (await ring.fetch({far.pair: NOW})).failures[far.name]
    # Another key of the same server, and the same key again.
    again = await ring.fetch({far.pair: NOW, (far.name, "ed25519:other"): NOW})
    assert "answered 500" in again.failures[far.name]
    assert far.asked == 1
    far.status = 200
    federation.now += 601_000
    assert set(await ring.fetch({far.pair: NOW})) == {far.pair}
    assert far.asked == 2


async def test_failures_can_be_forgotten(federation: Federation) -> None:
    far = federation.add("far")
    far.status = 500
    ring = federation.ring()
    await ring.fetch({far.pair: NOW})
    far.status = 200
    assert await ring.fetch({far.pair: NOW}) == {}
    ring.forget_failures()
    assert set(await ring.fetch({far.pair: NOW})) == {far.pair}


async def test_what_may_be_had_later_without_a_notary(federation: Federation) -> None:
    away, liar, far = (federation.add(label) for label in ("away", "liar", "far"))
    away.status = 503
    liar.answer = key_response(far.name, [liar.key], {}, NOW)
    unpublished = far.name, "ed25519:other"
    ring = federation.ring()
    for _ in range(2):
        # Also when it is only remembered.
        keys = await ring.fetch(dict.fromkeys([away.pair, liar.pair, far.pair, unpublished], NOW))
        assert keys.missing_for_now == {away.name}


async def test_what_may_be_had_later_from_a_notary(federation: Federation) -> None:
    notary, second, gone = (federation.add(label) for label in ("notary", "second", "gone"))
    gone.status = 503
    ring = federation.ring(notary.name, second.name)
    # Nobody has it, and nobody is away who might.
    assert (await ring.fetch({gone.pair: NOW})).missing_for_now == set()
    ring.forget_failures()
    notary.status = 503
    assert (await ring.fetch({gone.pair: NOW})).missing_for_now == {gone.name}
    ring.forget_failures()
    notary.status = 403
    assert (await ring.fetch({gone.pair: NOW})).missing_for_now == set()


async def test_a_key_that_is_known_for_too_short_a_time_may_be_had_later(
    federation: Federation,
) -> None:
    far = federation.add("far")
    ring = federation.ring()
    assert (await ring.fetch({far.pair: NOW})).missing_for_now == set()
    far.status = 503
    keys = await ring.fetch({far.pair: NOW + 100 * DAY})
    assert set(keys) == {far.pair}
    assert keys.missing_for_now == {far.name}


# -- many servers


async def test_many_servers_at_the_same_time_within_a_bound(federation: Federation) -> None:
    servers = [federation.add(f"s{n}") for n in range(60)]
    for server in servers:
        server.delay = 0.02
    ring = federation.ring(limits=KeyRingLimits(servers_at_once=8))
    keys = await ring.fetch({server.pair: NOW for server in servers})
    assert {pair: key.key for pair, key in keys.items()} == {
        server.pair: server.key.verify_key for server in servers
    }
    assert 4 <= federation.busiest <= 8
    assert federation.store.writes == 1


async def test_a_key_found_while_the_store_is_read_is_not_taken_for_one_that_is_not_there(
    federation: Federation,
) -> None:
    server = federation.add("a")
    ring = federation.ring()
    load_keys = federation.store.load_keys

    async def load_slowly(pairs: Collection[KeyPair]) -> dict[KeyPair, StoredKey]:
        known = await load_keys(pairs)
        federation.store.load_keys = load_keys  # type: ignore[method-assign]
        await ring.fetch({server.pair: NOW})
        return known

    federation.store.load_keys = load_slowly  # type: ignore[method-assign]
    assert server.pair in await ring.fetch({server.pair: NOW})


async def test_two_searches_ask_a_server_once(federation: Federation) -> None:
    far = federation.add("far")
    far.delay = 0.1
    ring = federation.ring()
    first = asyncio.create_task(ring.fetch({far.pair: NOW}))
    second = asyncio.create_task(ring.fetch({far.pair: NOW}))
    third = asyncio.create_task(ring.fetch({far.pair: NOW}))
    await asyncio.sleep(0.02)
    first.cancel()
    assert await second == await third == {far.pair: VerifyKey(far.key.verify_key, NOW + DAY)}
    assert far.asked == 1


# -- notaries


@pytest.mark.parametrize("pinned", [True, False])
async def test_a_notary_answers_for_many_servers_in_one_request(
    federation: Federation, pinned: bool
) -> None:
    notary = federation.add("notary")
    servers = [federation.add(f"s{n}") for n in range(20)]
    trusted: TrustedKeyServer | str = notary.name
    if pinned:
        trusted = TrustedKeyServer(notary.name, {notary.key.key_id: notary.key.verify_key})
    keys = await federation.ring(trusted).fetch({server.pair: NOW - 7 for server in servers})
    assert set(keys) == {server.pair for server in servers}
    [(asked, query)] = federation.queries
    assert asked == notary.name
    assert query == {
        server.name: {server.key.key_id: {"minimum_valid_until_ts": NOW - 7}} for server in servers
    }
    assert [server.asked for server in servers] == [0] * 20
    assert notary.asked == (0 if pinned else 1)
    stored = federation.store.keys[servers[0].pair]
    assert stored.from_server == notary.name
    assert set(json.loads(stored.key_json)["signatures"]) == {servers[0].name, notary.name}


async def test_hundreds_of_servers_are_asked_for_in_batches(federation: Federation) -> None:
    notary = federation.add("notary")
    servers = [federation.add(f"s{n}") for n in range(450)]
    keys = await federation.ring(notary.name).fetch({server.pair: NOW for server in servers})
    assert len(keys) == 450
    assert sorted(len(query) for _, query in federation.queries) == [50, 200, 200]


async def test_what_the_notary_does_not_have_is_asked_of_the_server(
    federation: Federation,
) -> None:
    notary = federation.add("notary")
    near, far = federation.add("near"), federation.add("far")
    ring = federation.ring(notary.name)
    far.status = 500
    assert set(await ring.fetch({near.pair: NOW, far.pair: NOW})) == {near.pair}
    assert (near.asked, far.asked) == (0, 1)


async def test_notaries_are_asked_in_order_until_one_has_it(federation: Federation) -> None:
    first, second = federation.add("first"), federation.add("second")
    first.status = 500
    far = federation.add("far")
    ring = federation.ring(
        TrustedKeyServer(first.name, {first.key.key_id: first.key.verify_key}), second.name
    )
    assert set(await ring.fetch({far.pair: NOW})) == {far.pair}
    assert [name for name, _ in federation.queries] == [first.name, second.name]
    assert far.asked == 0
    # The one that failed is left alone for a while.
    other = federation.add("other")
    assert set(await ring.fetch({other.pair: NOW})) == {other.pair}
    assert [name for name, _ in federation.queries] == [first.name, second.name, second.name]


async def test_a_notary_that_fails_is_named_with_the_missing_keys(federation: Federation) -> None:
    notary = federation.add("notary")
    far = federation.add("far")
    notary.status = far.status = 500
    failures = (await federation.ring(notary.name).fetch({far.pair: NOW})).failures
    assert failures[far.name].startswith(f"{far.name}: answered 500")
    assert f"; notary {notary.name}: answered 500" in failures[far.name]


async def test_a_notary_that_signs_with_another_key_is_not_believed(
    federation: Federation,
) -> None:
    notary, far = federation.add("notary"), federation.add("far")
    pinned = TrustedKeyServer(notary.name, {notary.key.key_id: generate_signing_key().verify_key})
    assert set(await federation.ring(pinned).fetch({far.pair: NOW})) == {far.pair}
    assert len(federation.queries) == 1
    assert far.asked == 1


@pytest.mark.parametrize("kind", ["unsigned by the server", "garbage", "not asked for"])
async def test_what_a_notary_makes_up_is_not_believed(federation: Federation, kind: str) -> None:
    """The notary vouches, but the server did not sign; or it was not asked about."""
    notary, far, bystander = federation.add("notary"), federation.add("far"), federation.add("b")
    made_up = generate_signing_key()
    forged = key_response(far.name, [made_up], {}, NOW)
    forged["signatures"] = {far.name: {made_up.key_id: "A" * 86}}
    entries: list[Any] = {
        "unsigned by the server": [forged],
        "garbage": [None, 5, [], {}, {"server_name": []}, {"server_name": far.name}],
        "not asked for": [key_response(bystander.name, [bystander.key], {}, NOW)],
    }[kind]

    async def serve_query(_: web.Request) -> web.StreamResponse:
        signed = [
            sign_json(entry, notary.name, notary.key) if isinstance(entry, dict) else entry
            for entry in entries
        ]
        return web.json_response({"server_keys": signed})

    federation.serve_query = serve_query  # type: ignore[method-assign]
    keys = await federation.ring(notary.name).fetch({far.pair: NOW, (far.name, made_up.key_id): 0})
    assert set(keys) == {far.pair}
    assert far.asked == 1
    assert {name for name, _ in federation.store.keys} == {far.name}


@pytest.mark.parametrize("answer", [{}, {"server_keys": {}}, {"server_keys": None}, []])
async def test_a_notary_that_talks_nonsense_is_passed_over(
    federation: Federation, answer: Any
) -> None:
    notary, far = federation.add("notary"), federation.add("far")

    async def serve_query(_: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    federation.serve_query = serve_query  # type: ignore[method-assign]
    assert set(await federation.ring(notary.name).fetch({far.pair: NOW})) == {far.pair}


async def test_an_old_answer_of_a_notary_does_not_shorten_what_we_know(
    federation: Federation,
) -> None:
    notary, far = federation.add("notary"), federation.add("far")
    await federation.ring().fetch({far.pair: NOW})
    far.answer = key_response(far.name, [far.key], {}, NOW - 5 * DAY)
    far.delay = 0
    ring = federation.ring(notary.name)
    federation.now += 2 * DAY
    keys = await ring.fetch({far.pair: federation.now})
    assert keys[far.pair].valid_until_ts == NOW + DAY
