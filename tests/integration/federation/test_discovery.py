"""Server discovery against a real DNS server and real .well-known files on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import dns.asyncresolver
import pytest
from aiohttp import web

from federation.address_policy import DEFAULT_IP_RANGE_DENYLIST, AddressPolicy
from federation.discovery import Resolver
from federation.dns_lookup import DnsLookup
from federation.errors import TransportError
from federation.https import Endpoint, HttpsConnections
from federation.tls import client_tls_context
from federation.well_known import WellKnown, WellKnownLimits
from tests.integration.federation.loopback import (
    LOOPBACK,
    Certificates,
    DnsZone,
    dns_server,
    https_server,
    raw_server,
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class World:
    """A resolver, with all it talks to under the test's control."""

    zone: DnsZone
    dns: dns.asyncresolver.Resolver
    resolver: Resolver
    well_known: WellKnown
    port: int
    requests: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    now: float = 0.0


@pytest.fixture
async def world(certificates: Certificates) -> AsyncIterator[World]:
    """`example.test` and `other.test` have a .well-known server; nothing else has."""
    async with make_world(certificates) as made:
        yield made


@contextlib.asynccontextmanager
async def make_world(
    certificates: Certificates,
    *,
    names: tuple[str, ...] = ("example.test", "other.test", "127.0.0.1"),
    allow: tuple[str, ...] = (*LOOPBACK, "192.0.2.0/24", "2001:db8::/32"),
    limits: WellKnownLimits | None = None,
    verify: bool = True,
) -> AsyncIterator[World]:
    zone = DnsZone()
    tls, trusted = certificates.make(*names)
    made: World

    async def well_known(request: web.Request) -> web.StreamResponse:
        made.requests.append(f"{request.host} {request.path_qs}")
        answer = made.answers.get(request.path)
        return await answer(request) if answer else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", well_known)
    connections = HttpsConnections(client_tls_context(verify_certificates=verify, ca_path=trusted))
    async with dns_server(zone) as dns_resolver, https_server(app, tls) as port:
        lookup = DnsLookup(dns_resolver, hosts_path=None, timeout=5)
        policy = AddressPolicy(DEFAULT_IP_RANGE_DENYLIST, allow)
        looked_up = WellKnown(
            lookup, policy, connections, port=port, limits=limits, clock=lambda: made.now
        )
        made = World(zone, dns_resolver, Resolver(lookup, policy, looked_up), looked_up, port)
        try:
            yield made
        finally:
            await connections.close()


def delegating(delegated: object, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"m.server": delegated}, headers=named)

    return answer


WELL_KNOWN = "/.well-known/matrix/server"


# -- step 1: IP literals


@pytest.mark.parametrize(
    ("server_name", "endpoint"),
    [
        ("192.0.2.7", Endpoint("192.0.2.7", 8448, "192.0.2.7", "192.0.2.7")),
        ("192.0.2.7:5", Endpoint("192.0.2.7", 5, "192.0.2.7:5", "192.0.2.7")),
        ("[2001:db8::7]", Endpoint("2001:db8::7", 8448, "[2001:db8::7]", "2001:db8::7")),
        ("[2001:db8::7]:5", Endpoint("2001:db8::7", 5, "[2001:db8::7]:5", "2001:db8::7")),
    ],
)
async def test_an_ip_literal_is_used_as_it_is(
    world: World, server_name: str, endpoint: Endpoint
) -> None:
    assert await world.resolver.resolve(server_name) == [endpoint]
    assert world.zone.questions == []


# -- step 2: explicit ports


async def test_an_explicit_port_needs_only_addresses(world: World) -> None:
    world.zone.add("example.test", "CNAME", "real.test.")
    world.zone.add("real.test", "A", "192.0.2.1")
    world.zone.add("real.test", "AAAA", "2001:db8::1")
    assert await world.resolver.resolve("example.test:99") == [
        Endpoint("192.0.2.1", 99, "example.test:99", "example.test"),
        Endpoint("2001:db8::1", 99, "example.test:99", "example.test"),
    ]
    assert {kind for _, kind in world.zone.questions} == {"A", "AAAA"}
    assert world.requests == []


# -- step 3: .well-known


@pytest.mark.parametrize(
    ("delegated", "endpoint"),
    [
        ("192.0.2.8", Endpoint("192.0.2.8", 8448, "192.0.2.8", "192.0.2.8")),
        ("[2001:db8::8]:7", Endpoint("2001:db8::8", 7, "[2001:db8::8]:7", "2001:db8::8")),
        ("matrix.test:443", Endpoint("192.0.2.9", 443, "matrix.test:443", "matrix.test")),
        ("matrix.test", Endpoint("192.0.2.9", 8448, "matrix.test", "matrix.test")),
        ("srv.test", Endpoint("192.0.2.9", 777, "srv.test", "srv.test")),
        ("oldsrv.test", Endpoint("192.0.2.9", 778, "oldsrv.test", "oldsrv.test")),
    ],
)
async def test_a_delegation_is_followed(world: World, delegated: str, endpoint: Endpoint) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    world.zone.add("matrix.test", "A", "192.0.2.9")
    world.zone.add("_matrix-fed._tcp.srv.test", "SRV", "0 0 777 matrix.test.")
    world.zone.add("_matrix._tcp.srv.test", "SRV", "0 0 1 wrong.test.")
    world.zone.add("_matrix._tcp.oldsrv.test", "SRV", "0 0 778 matrix.test.")
    world.answers[WELL_KNOWN] = delegating(delegated)
    assert await world.resolver.resolve("example.test") == [endpoint]
    assert world.requests == [f"example.test {WELL_KNOWN}"]
    # A delegated name is not asked for another delegation.
    assert await world.resolver.resolve("example.test") == [endpoint]
    assert len(world.requests) == 1


# -- steps 4 to 6


@pytest.mark.parametrize("service", ["_matrix-fed._tcp", "_matrix._tcp"])
async def test_srv_records_are_used_by_priority(world: World, service: str) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    world.zone.add("second.test", "A", "192.0.2.2")
    world.zone.add("first.test", "A", "192.0.2.1")
    world.zone.add(f"{service}.example.test", "SRV", "20 9 20 second.test.", "10 1 10 first.test.")
    assert await world.resolver.resolve("example.test") == [
        Endpoint("192.0.2.1", 10, "example.test", "example.test"),
        Endpoint("192.0.2.2", 20, "example.test", "example.test"),
    ]


async def test_srv_weights_are_chances(world: World) -> None:
    world.zone.add("a.test", "A", "192.0.2.1")
    world.zone.add("_matrix-fed._tcp.none.test", "SRV", "1 1 1 a.test.", "1 65535 2 a.test.")
    ports = [(await world.resolver.resolve("none.test"))[0].port for _ in range(20)]
    assert ports.count(2) >= 15


async def test_the_registered_service_comes_first(world: World) -> None:
    world.zone.add("a.test", "A", "192.0.2.1")
    world.zone.add("_matrix-fed._tcp.none.test", "SRV", "0 0 1 a.test.")
    world.zone.add("_matrix._tcp.none.test", "SRV", "0 0 2 a.test.")
    assert [e.port for e in await world.resolver.resolve("none.test")] == [1]


async def test_without_records_port_8448_of_the_host_is_used(world: World) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    endpoints = await world.resolver.resolve("example.test")
    assert endpoints == [Endpoint("127.0.0.1", 8448, "example.test", "example.test")]


async def test_srv_lookups_that_fail_do_not_hide_the_address(world: World) -> None:
    world.zone.add("none.test", "AAAA", "2001:db8::5")
    world.zone.failing |= {"_matrix-fed._tcp.none.test", "_matrix._tcp.none.test"}
    assert [e.address for e in await world.resolver.resolve("none.test")] == ["2001:db8::5"]


async def test_a_srv_record_can_say_that_there_is_no_service(world: World) -> None:
    world.zone.add("none.test", "A", "192.0.2.1")
    world.zone.add("_matrix-fed._tcp.none.test", "SRV", "0 0 0 .")
    with pytest.raises(TransportError, match="no such service"):
        await world.resolver.resolve("none.test")


@pytest.mark.parametrize(
    ("server_name", "reason"),
    [
        ("missing.test", "missing.test has no address in DNS"),
        ("missing.test:1", "missing.test has no address in DNS"),
        ("broken.test", "DNS lookup of broken.test failed"),
        ("not a name", "is not a server name"),
        ("010.0.0.1", "on the deny list"),
        ("example.test:0", "port 0"),
    ],
)
async def test_names_that_lead_nowhere(world: World, server_name: str, reason: str) -> None:
    world.zone.failing.add("broken.test")
    with pytest.raises(TransportError, match=reason) as raised:
        await world.resolver.resolve(server_name)
    assert raised.value.destination == server_name


async def test_the_number_of_endpoints_is_bounded(world: World) -> None:
    for n in range(30):
        world.zone.add(f"host{n}.test", "A", *(f"192.0.2.{a}" for a in range(1, 21)))
    world.zone.add(
        "_matrix-fed._tcp.none.test", "SRV", *(f"{n} 0 {n} host{n}.test." for n in range(1, 30))
    )
    assert len(await world.resolver.resolve("none.test")) == 10


# -- the deny list


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[fd00::1]",
    ],
)
@pytest.mark.parametrize("port", ["", ":443"])
async def test_denied_literals(certificates: Certificates, address: str, port: str) -> None:
    async with make_world(certificates, allow=()) as world:
        with pytest.raises(TransportError, match="on the deny list"):
            await world.resolver.resolve(address + port)


async def test_the_deny_list_applies_to_resolved_addresses(certificates: Certificates) -> None:
    async with make_world(certificates, allow=("192.0.2.1/32",)) as world:
        world.zone.add("inside.test", "A", "10.0.0.1", "192.168.1.1")
        world.zone.add("inside.test", "AAAA", "::ffff:10.0.0.1")
        world.zone.add("mixed.test", "A", "10.0.0.1", "192.0.2.1")
        world.zone.add("_matrix-fed._tcp.srv.test", "SRV", "0 0 1 inside.test.")
        for name in ("inside.test", "inside.test:1", "srv.test"):
            with pytest.raises(TransportError, match=r"1(0|92)[0-9.]+ is on the deny list"):
                await world.resolver.resolve(name)
        allowed = await world.resolver.resolve("mixed.test:1")
        assert [endpoint.address for endpoint in allowed] == ["192.0.2.1"]


async def test_well_known_is_not_asked_at_a_denied_address(certificates: Certificates) -> None:
    async with make_world(certificates, allow=("192.0.2.1/32",)) as world:
        world.zone.add("example.test", "A", "127.0.0.1")
        world.answers[WELL_KNOWN] = delegating("192.0.2.1")
        with pytest.raises(TransportError, match="on the deny list"):
            await world.resolver.resolve("example.test")
        assert world.requests == []


async def test_a_delegation_to_a_denied_address_is_refused(certificates: Certificates) -> None:
    async with make_world(certificates, allow=LOOPBACK) as world:
        world.zone.add("example.test", "A", "127.0.0.1")
        world.answers[WELL_KNOWN] = delegating("169.254.169.254:80")
        with pytest.raises(TransportError, match=r"169\.254\.169\.254 is on the deny list"):
            await world.resolver.resolve("example.test")


async def test_a_redirect_to_a_denied_address_is_not_followed(certificates: Certificates) -> None:
    async with make_world(certificates, allow=("127.0.0.1/32",)) as world:
        world.zone.add("example.test", "A", "127.0.0.1")
        world.zone.add("inside.test", "A", "127.0.0.2")

        for location in ("https://127.0.0.2:{port}/x", "https://inside.test:{port}/x"):
            url = location.format(port=world.port)

            async def redirect(_: web.Request, url: str = url) -> web.StreamResponse:
                raise web.HTTPFound(url)

            world.answers[WELL_KNOWN] = redirect
            world.answers["/x"] = delegating("192.0.2.1")
            assert await world.well_known.lookup("example.test") is None
            world.now += 100_000
        assert all(request.endswith(WELL_KNOWN) for request in world.requests)


# -- .well-known: redirects, bounds, cache


async def redirecting_to(world: World, *urls: str) -> str | None:
    """The delegation after a chain of redirects through `urls`."""
    world.zone.add("example.test", "A", "127.0.0.1")
    world.zone.add("other.test", "A", "127.0.0.1")
    path = WELL_KNOWN
    for index, url in enumerate(urls):

        async def redirect(
            _: web.Request, url: str = url, status: int = (301, 302, 307, 308)[index % 4]
        ) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": url})

        world.answers[path] = redirect
        path = "/" + url.rpartition("/")[2]
    world.answers.setdefault(path, delegating("192.0.2.1"))
    return await world.well_known.lookup("example.test")


async def test_redirects_are_followed_across_hosts(world: World) -> None:
    urls = ("/relative", "https://other.test/elsewhere", f"https://127.0.0.1:{world.port}/there")
    assert await redirecting_to(world, *urls) == "192.0.2.1"
    assert world.requests == [
        f"example.test {WELL_KNOWN}",
        "example.test /relative",
        "other.test /elsewhere",
        f"127.0.0.1:{world.port} /there",
    ]


@pytest.mark.parametrize(
    "url",
    ["http://example.test/x", "ftp://a/x", "https://u@other.test/x", "https://[/x"],
)
async def test_redirects_to_anything_but_plain_https_are_not_followed(
    world: World, url: str
) -> None:
    assert await redirecting_to(world, url) is None
    assert len(world.requests) == 1


async def test_redirect_loops_end(world: World) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")

    async def loop(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": WELL_KNOWN})

    world.answers[WELL_KNOWN] = loop
    assert await world.well_known.lookup("example.test") is None
    assert len(world.requests) == 6


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"m.server": 5}',
        b'{"m.server": ""}',
        b'{"m.server": "not a name"}',
        b'{"m.server": "a.test:99999"}',
        b'{"m.server": "a.test"' + b" " * 60_000 + b"}",
        b'{"m.server": "\xff"}',
    ],
)
async def test_useless_answers_lead_on_to_srv(world: World, body: bytes) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    world.zone.add("example.test", "A", "127.0.0.1")
    world.zone.add("a.test", "A", "192.0.2.4")
    world.zone.add("_matrix-fed._tcp.example.test", "SRV", "0 0 4 a.test.")
    world.answers[WELL_KNOWN] = answer
    assert await world.resolver.resolve("example.test") == [
        Endpoint("192.0.2.4", 4, "example.test", "example.test")
    ]


async def test_a_well_known_with_the_wrong_certificate_does_not_count(
    certificates: Certificates,
) -> None:
    async with make_world(certificates, names=("wrong.test",)) as world:
        world.zone.add("example.test", "A", "127.0.0.1")
        world.answers[WELL_KNOWN] = delegating("192.0.2.1")
        assert await world.well_known.lookup("example.test") is None
        assert world.requests == []


async def test_a_well_known_that_stalls_is_left_behind(certificates: Certificates) -> None:
    limits = WellKnownLimits(total=0.3)
    async with make_world(certificates, limits=limits) as world:
        world.zone.add("example.test", "A", "127.0.0.1")

        async def stall(_: web.Request) -> web.StreamResponse:
            await asyncio.sleep(30)
            return web.Response()

        world.answers[WELL_KNOWN] = stall
        async with asyncio.timeout(10):
            assert await world.well_known.lookup("example.test") is None


@pytest.mark.parametrize(
    ("headers", "lifetime"),
    [
        ({}, 24 * 3600),
        ({"Cache_Control": "public, max-age=7200"}, 7200),
        ({"Cache_Control": "max-age=1"}, 300),
        ({"Cache_Control": "max-age=99999999"}, 48 * 3600),
        ({"Cache_Control": "no-store"}, 300),
        (
            {
                "Date": "Mon, 01 Jan 2024 00:00:00 GMT",
                "Expires": "Mon, 01 Jan 2024 02:00:00 GMT",
            },
            7200,
        ),
        ({"Date": "Mon, 01 Jan 2024 00:00:00 GMT", "Expires": "0"}, 300),
    ],
)
async def test_answers_are_kept_within_bounds(
    world: World, headers: dict[str, str], lifetime: int
) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    world.answers[WELL_KNOWN] = delegating("192.0.2.1", **headers)
    assert await world.well_known.lookup("example.test") == "192.0.2.1"
    world.answers[WELL_KNOWN] = delegating("192.0.2.2")
    world.now = lifetime - 1
    assert await world.well_known.lookup("EXAMPLE.test") == "192.0.2.1"
    world.now = lifetime + 1
    assert await world.well_known.lookup("example.test") == "192.0.2.2"


async def test_failures_are_kept_for_longer_each_time(world: World) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    asked_at = []
    for world.now in range(0, 20_000, 10):
        before = len(world.requests)
        assert await world.well_known.lookup("example.test") is None
        if len(world.requests) > before:
            asked_at.append(world.now)
    waits = [b - a for a, b in itertools.pairwise(asked_at)]
    assert waits[:7] == [60, 120, 240, 480, 960, 1920, 3600]
    assert set(waits[7:]) == {3600}


async def test_a_delegation_survives_a_failure_but_not_for_ever(world: World) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    world.answers[WELL_KNOWN] = delegating("192.0.2.1", Cache_Control="max-age=3600")
    assert await world.well_known.lookup("example.test") == "192.0.2.1"
    del world.answers[WELL_KNOWN]
    for hours in (2, 24, 47):
        world.now = hours * 3600
        assert await world.well_known.lookup("example.test") == "192.0.2.1"
    world.now = 49 * 3600
    assert await world.well_known.lookup("example.test") is None


async def test_lookups_at_the_same_time_make_one_request(world: World) -> None:
    world.zone.add("example.test", "A", "127.0.0.1")
    world.answers[WELL_KNOWN] = delegating("192.0.2.1")
    first = asyncio.create_task(world.well_known.lookup("example.test"))
    others = [asyncio.create_task(world.well_known.lookup("example.test")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == ["192.0.2.1"] * 5
    assert len(world.requests) == 1


async def test_the_cache_is_bounded(certificates: Certificates) -> None:
    async with make_world(certificates, limits=WellKnownLimits(entries=2)) as world:
        for name in ("a.test", "b.test", "c.test", "a.test"):
            await world.well_known.lookup(name)
        asked = [name for name, kind in world.zone.questions if kind == "A"]
        assert asked == ["a.test", "b.test", "c.test", "a.test"]


# -- DNS itself


async def test_the_hosts_file_comes_first(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# local\n::1 box.test\n127.0.0.9 other box.test # note\n\n")
    zone = DnsZone()
    zone.add("box.test", "A", "192.0.2.1")
    async with dns_server(zone) as resolver:
        lookup = DnsLookup(resolver, hosts_path=str(hosts))
        assert await lookup.addresses("Box.test.") == ["127.0.0.9", "::1"]
        assert await lookup.addresses("localhost") == ["127.0.0.1", "::1"]
    assert zone.questions == []


async def test_a_silent_dns_server_is_an_error_in_time() -> None:
    async with raw_server(lambda *_: asyncio.sleep(0), None) as port:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = port
        lookup = DnsLookup(resolver, hosts_path=None, timeout=0.3)
        policy = AddressPolicy()
        connections = HttpsConnections(client_tls_context())
        found = Resolver(lookup, policy, WellKnown(lookup, policy, connections))
        async with asyncio.timeout(10):
            with pytest.raises(TransportError, match=r"DNS lookup of slow\.test failed"):
                await found.resolve("slow.test:1")
