"""Requests over real TLS connections: errors, time-outs, retries, bounds."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from federation.errors import HttpError, InvalidAddressRange, InvalidResponse, TransportError
from federation.https import BrokenConnection, CannotConnect, Timeouts
from federation.tls import client_tls_context
from federation.transport import RetryPolicy, Transport, open_transport
from tests.integration.federation.loopback import (
    LOOPBACK,
    Certificates,
    DnsZone,
    RawHandler,
    dns_server,
    head,
    https_server,
    json_answer,
    json_app,
    raw_server,
)

FAST = RetryPolicy(attempts=3, backoff=0.01, max_retry_after=0.2)
PATIENCE = 20.0
"""Far longer than anything here should take; what ends a hanging test."""


@asynccontextmanager
async def transport_for(
    trusted: Path | None,
    *,
    allow: tuple[str, ...] = LOOPBACK,
    retries: RetryPolicy = FAST,
    **kwargs: Any,
) -> AsyncIterator[Transport]:
    tls = client_tls_context(verify_certificates=trusted is not None, ca_path=trusted)
    transport = open_transport(tls=tls, ip_range_allowlist=allow, retries=retries, **kwargs)
    try:
        async with asyncio.timeout(PATIENCE):
            yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def talking_to(
    handler: RawHandler, certificates: Certificates
) -> AsyncIterator[tuple[Transport, str]]:
    """A transport, and the name of a raw server at which `handler` answers."""
    tls, trusted = certificates.make("localhost")
    async with raw_server(handler, tls) as port, transport_for(trusted) as transport:
        yield transport, f"localhost:{port}"


def writing(*pieces: bytes | float) -> RawHandler:
    """Writes bytes, sleeps for numbers, then closes."""

    async def handler(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await asyncio.sleep(piece)

    return handler


async def get(transport: Transport, destination: str, **kwargs: Any) -> dict[str, Any]:
    return await transport.get_json(destination, "/x?y=1", **{"max_bytes": 10_000, **kwargs})


# -- the request as it arrives


async def test_the_request_as_the_server_sees_it(certificates: Certificates) -> None:
    seen: list[bytes] = []

    async def handler(
        request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        seen.append(request)
        if b"POST" in request:
            seen.append(await reader.readexactly(13))
        writer.write(json_answer({"ok": True}))

    async with talking_to(handler, certificates) as (transport, server):
        assert await get(transport, server, authorization="X-Matrix a") == {"ok": True}
        answer = await transport.post_json(server, "/p%2Fq", {"b": 1, "a": 2}, max_bytes=1000)
        assert answer == {"ok": True}
    lines = seen[0].decode().split("\r\n")
    assert lines[0] == "GET /x?y=1 HTTP/1.1"
    assert f"Host: {server}" in lines
    assert "Authorization: X-Matrix a" in lines
    assert "Accept-Encoding: identity" in lines
    assert seen[1].startswith(b"POST /p%2Fq HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in seen[1]
    assert seen[2] == b'{"a":2,"b":1}'


# -- TLS


@pytest.mark.parametrize("verify", [True, False])
async def test_sni_is_sent_and_the_certificate_is_that_of_the_name(
    certificates: Certificates, verify: bool
) -> None:
    """By name, resolved through DNS: SNI is the name, with and without verification."""
    names: list[str | None] = []
    tls, trusted = certificates.make("far.test")
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    zone = DnsZone()
    zone.add("far.test", "A", "127.0.0.1")
    async with (
        dns_server(zone) as dns,
        https_server(json_app({("GET", "/x"): {"a": 1}}), tls) as port,
        transport_for(trusted if verify else None, dns_resolver=dns) as transport,
    ):
        assert await get(transport, f"far.test:{port}") == {"a": 1}
    assert names == ["far.test"]


async def test_no_sni_for_an_ip_literal(certificates: Certificates) -> None:
    names: list[str | None] = []
    tls, trusted = certificates.make("127.0.0.1")
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    async with (
        https_server(json_app({("GET", "/x"): {"a": 1}}), tls) as port,
        transport_for(trusted) as transport,
    ):
        assert await get(transport, f"127.0.0.1:{port}") == {"a": 1}
    assert names == [None]


@pytest.mark.parametrize("names", [("other.test",), ("127.0.0.1",)])
async def test_a_certificate_of_another_name_is_refused(
    certificates: Certificates, names: tuple[str, ...]
) -> None:
    tls, trusted = certificates.make(*names)
    requests: list[bytes] = []

    async def handler(request: bytes, *_: Any) -> None:
        requests.append(request)

    async with raw_server(handler, tls) as port, transport_for(trusted) as transport:
        with pytest.raises(TransportError, match=r"certificate .* is not valid for localhost"):
            await get(transport, f"localhost:{port}")
    assert requests == []


async def test_an_unknown_authority_is_refused(certificates: Certificates) -> None:
    tls, _ = certificates.make("localhost")
    _, trusted = certificates.make("localhost")
    async with (
        https_server(json_app({("GET", "/x"): {}}), tls) as port,
        transport_for(trusted) as transport,
    ):
        with pytest.raises(TransportError, match=r"certificate .* self-signed"):
            await get(transport, f"localhost:{port}")


async def test_a_server_without_tls_is_told_apart(certificates: Certificates) -> None:
    _, trusted = certificates.make("localhost")

    server = await asyncio.start_server(
        lambda _, writer: writer.write(b"HTTP/1.1 400 Bad\r\n\r\n"), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server, transport_for(trusted) as transport:
        with pytest.raises(TransportError, match=r"TLS handshake with 127\.0\.0\.1 port .* failed"):
            await get(transport, f"127.0.0.1:{port}")


async def test_a_kept_connection_is_not_used_for_another_name(certificates: Certificates) -> None:
    """One address hosts two names; the certificate is good for one of them only."""
    tls, trusted = certificates.make("good.test")
    zone = DnsZone()
    zone.add("good.test", "A", "127.0.0.1")
    zone.add("evil.test", "A", "127.0.0.1")
    async with (
        dns_server(zone) as dns,
        https_server(json_app({("GET", "/x"): {"a": 1}}), tls) as port,
        transport_for(trusted, dns_resolver=dns) as transport,
    ):
        assert await get(transport, f"good.test:{port}") == {"a": 1}
        with pytest.raises(TransportError, match=r"is not valid for evil\.test"):
            await get(transport, f"evil.test:{port}")


# -- where connections go


@pytest.mark.parametrize("server", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
async def test_a_denied_address_is_never_connected_to(server: str) -> None:
    connections = 0

    async def handler(*_: Any) -> None:
        nonlocal connections
        connections += 1

    async with raw_server(handler, None) as port, transport_for(None, allow=()) as transport:
        with pytest.raises(TransportError, match="on the deny list"):
            await get(transport, f"{server}:{port}")
    assert connections == 0


async def test_the_next_address_is_tried_when_one_refuses(certificates: Certificates) -> None:
    tls, trusted = certificates.make("two.test")
    zone = DnsZone()
    zone.add("two.test", "A", "127.0.0.1")
    zone.add("two.test", "A", "127.0.0.2")
    app = json_app({("GET", "/x"): {"a": 1}, ("PUT", "/x"): {"b": 1}})
    async with (
        dns_server(zone) as dns,
        https_server(app, tls, "127.0.0.2") as port,
        transport_for(trusted, dns_resolver=dns) as transport,
    ):
        assert await get(transport, f"two.test:{port}") == {"a": 1}
        async with transport.request(f"two.test:{port}", "PUT", "/x", content={}) as response:
            assert await response.read(100) == b'{"b": 1}'


async def test_a_refused_connection_is_tried_again_and_then_said_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        async with transport_for(None) as transport:
            with pytest.raises(CannotConnect, match=f"cannot connect to 127.0.0.1 port {port}"):
                await get(transport, f"127.0.0.1:{port}")


async def test_a_handshake_that_stalls_ends_in_time() -> None:
    server = await asyncio.start_server(lambda *_: asyncio.sleep(0), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, transport_for(None) as transport:
        with pytest.raises(TransportError, match=r"no connection to 127\.0\.0\.1 .* in 0\.1 s"):
            await get(transport, f"127.0.0.1:{port}", timeouts=Timeouts(connect=0.1))


# -- statuses


@pytest.mark.parametrize(
    ("status", "body", "errcode", "message"),
    [
        (
            "403 Forbidden",
            b'{"errcode":"M_FORBIDDEN","error":"not here"}',
            "M_FORBIDDEN",
            "not here",
        ),
        (
            "404 Not Found",
            b"<html>\nnot \x1b[31mfound</html>",
            "M_UNKNOWN",
            "<html> not  [31mfound</html>",
        ),
        ("500 Oops", b'{"errcode":5,"error":["x"]}', "M_UNKNOWN", ""),
        ("418 Teapot", b"[]", "M_UNKNOWN", ""),
        ("301 Moved", b"", "M_UNKNOWN", ""),
        ("204 No Content", b"", "M_UNKNOWN", ""),
        ("400 Bad", b'{"error":"' + b"x" * 5000 + b'"}', "M_UNKNOWN", "x" * 300),
        ("400 Bad", b"z" * 100_000, "M_UNKNOWN", ""),
        ("400 Bad", b"\xff\xfe", "M_UNKNOWN", "��"),
    ],
)
async def test_http_errors(
    certificates: Certificates, status: str, body: bytes, errcode: str, message: str
) -> None:
    answer = head(len(body), status, Location="https://127.0.0.1:1/y") + body
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(HttpError) as raised:
            await get(transport, server)
    error = raised.value
    assert (error.destination, error.status) == (server, int(status[:3]))
    assert (error.errcode, error.message) == (errcode, message)
    assert error.retry_after_ms is None


def counting(*answers: bytes) -> tuple[RawHandler, list[bytes]]:
    """Gives the answers in turn, one connection each; the last for ever."""
    seen: list[bytes] = []

    async def handler(request: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(answers[min(len(seen), len(answers)) - 1])

    return handler, seen


LIMITED = {"errcode": "M_LIMIT_EXCEEDED", "error": "slow down"}


@pytest.mark.parametrize(
    "failure",
    [
        json_answer({}, "502 Bad Gateway"),
        json_answer({}, "503 Busy"),
        json_answer({}, "504 Timeout"),
        json_answer({**LIMITED, "retry_after_ms": 20}, "429 Slow"),
        b"",
    ],
)
async def test_what_is_safe_is_tried_again(certificates: Certificates, failure: bytes) -> None:
    handler, seen = counting(failure, failure, json_answer({"a": 1}))
    async with talking_to(handler, certificates) as (transport, server):
        assert await get(transport, server) == {"a": 1}
    assert len(seen) == 3


async def test_three_attempts_are_enough(certificates: Certificates) -> None:
    handler, seen = counting(json_answer({"error": "busy"}, "503 Busy"))
    async with talking_to(handler, certificates) as (transport, server):
        with pytest.raises(HttpError, match="answered 503 M_UNKNOWN: busy"):
            await get(transport, server)
    assert len(seen) == 3


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "403 No", "404 No", "500 Oops"])
async def test_an_answer_that_will_not_change_is_not_asked_for_again(
    certificates: Certificates, status: str
) -> None:
    handler, seen = counting(json_answer({}, status))
    async with talking_to(handler, certificates) as (transport, server):
        with pytest.raises(HttpError):
            await get(transport, server)
    assert len(seen) == 1


@pytest.mark.parametrize("failure", [json_answer({}, "503 Busy"), b""])
@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_what_has_effects_is_sent_once(
    certificates: Certificates, method: str, failure: bytes
) -> None:
    handler, seen = counting(failure)
    async with talking_to(handler, certificates) as (transport, server):
        with pytest.raises((HttpError, BrokenConnection)):
            async with transport.request(server, method, "/x", content={}):
                pytest.fail("there is no answer")
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("answer", "retry_after_ms"),
    [
        (json_answer({**LIMITED, "retry_after_ms": 60_000}, "429 Slow"), 60_000),
        (head(2, "429 Slow", Retry_After="7") + b"{}", 7000),
    ],
)
async def test_a_long_wait_is_left_to_the_caller(
    certificates: Certificates, answer: bytes, retry_after_ms: int
) -> None:
    handler, seen = counting(answer)
    async with talking_to(handler, certificates) as (transport, server):
        with pytest.raises(HttpError) as raised:
            await get(transport, server)
    assert raised.value.retry_after_ms == retry_after_ms
    assert len(seen) == 1


@pytest.mark.parametrize("value", ['"5"', "-1", "1.5", "true", "null", "[]"])
async def test_a_senseless_retry_after_is_ignored(certificates: Certificates, value: str) -> None:
    body = f'{{"retry_after_ms":{value}}}'.encode()
    answer = head(len(body), "429 Slow", Retry_After="soon") + body
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(HttpError) as raised:
            await get(transport, server)
    assert raised.value.retry_after_ms is None


# -- bodies


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b'{"a":', "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b"[" * 100_0 + b"]" * 1000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a":"' + b"x" * 10_000 + b'"}', "larger than 10000 bytes"),
    ],
)
@pytest.mark.parametrize("with_length", [True, False])
async def test_bodies_that_are_no_json_object(
    certificates: Certificates, body: bytes, reason: str, with_length: bool
) -> None:
    answer = head(len(body) if with_length else None) + body
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(InvalidResponse, match=reason):
            await get(transport, server)


async def test_an_announced_size_is_believed_before_anything_is_read(
    certificates: Certificates,
) -> None:
    answer = head(10**12) + b"{"
    async with talking_to(writing(answer, 5.0), certificates) as (transport, server):
        with pytest.raises(InvalidResponse, match="larger than 10000 bytes"):
            await get(transport, server)


@pytest.mark.parametrize(
    "answer",
    [head(100) + b'{"a":1', head(None, Transfer_Encoding="chunked") + b'6\r\n{"a":1\r\n'],
)
async def test_a_truncated_body_is_an_error(certificates: Certificates, answer: bytes) -> None:
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(TransportError, match="cut off after 6 bytes"):
            await get(transport, server)


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 999999 What\r\n\r\n", b"\x00" * 50 + b"\r\n\r\n"],
)
async def test_what_is_not_http_is_an_error(certificates: Certificates, garbage: bytes) -> None:
    async with talking_to(writing(garbage), certificates) as (transport, server):
        with pytest.raises(TransportError):
            await get(transport, server)


async def test_endless_headers_are_refused(certificates: Certificates) -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + b"X-Filler: " + b"y" * 1_000_000
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(TransportError):
            await get(transport, server)


async def test_a_compressed_body_is_refused(certificates: Certificates) -> None:
    answer = head(3, Content_Encoding="gzip") + b"abc"
    async with talking_to(writing(answer), certificates) as (transport, server):
        with pytest.raises(InvalidResponse, match="compressed"):
            await get(transport, server)


# -- silence


@pytest.mark.parametrize("start", [(), (head(10),), (b"HTTP/1.1 200 OK\r\nX: y",)])
async def test_silence_before_the_first_byte(
    certificates: Certificates, start: tuple[bytes, ...]
) -> None:
    timeouts = Timeouts(connect=0.3, first_byte=0.2)
    async with talking_to(writing(*start, 10.0), certificates) as (transport, server):
        with pytest.raises(TransportError, match=r"no answer .* in 0\.2 s"):
            await get(transport, server, timeouts=timeouts)


async def test_silence_in_the_middle(certificates: Certificates) -> None:
    timeouts = Timeouts(idle=0.2)
    answer = writing(head(100) + b'{"a":', 10.0)
    async with talking_to(answer, certificates) as (transport, server):
        with pytest.raises(TransportError, match=r"silent for 0\.2 s .* after 5 bytes"):
            await get(transport, server, timeouts=timeouts)


async def test_a_slow_answer_that_keeps_coming_is_waited_for(certificates: Certificates) -> None:
    """Longer in all than any single time-out."""
    body = json.dumps({"a": "x" * 3000}).encode()
    pieces: list[bytes | float] = [0.3, head(len(body))]
    for start in range(0, len(body), 500):
        pieces += [0.15, body[start : start + 500]]
    timeouts = Timeouts(first_byte=1.0, idle=0.9, rate_window=0.3, minimum_rate=200)
    async with talking_to(writing(*pieces), certificates) as (transport, server):
        assert await get(transport, server, timeouts=timeouts) == {"a": "x" * 3000}


async def test_a_trickle_is_ended(certificates: Certificates) -> None:
    """Never silent for long, but one byte at a time."""
    pieces: list[bytes | float] = [head(10_000), b"{"]
    for _ in range(1000):
        pieces += [0.02, b" "]
    timeouts = Timeouts(idle=5.0, rate_window=0.3, minimum_rate=1000)
    async with talking_to(writing(*pieces), certificates) as (transport, server):
        with pytest.raises(TransportError, match="trickles in"):
            await get(transport, server, timeouts=timeouts)


async def test_a_slow_reader_is_not_held_against_the_server(certificates: Certificates) -> None:
    """Only time spent waiting for the server counts towards its rate."""
    body = b"x" * 3_000_000
    timeouts = Timeouts(rate_window=0.1, minimum_rate=100_000_000)
    async with (
        talking_to(writing(head(len(body)) + body), certificates) as (transport, server),
        transport.request(server, "GET", "/x", timeouts=timeouts) as response,
    ):
        read = 0
        async for piece in response.pieces(len(body)):
            read += len(piece)
            if read < 500_000:
                await asyncio.sleep(0.05)
    assert read == len(body)


# -- TLS and address lists as configured


def test_lists_that_are_no_ranges_are_refused() -> None:
    with pytest.raises(InvalidAddressRange, match=r"'10\.0\.0\.0/99' is not an IP range"):
        open_transport(tls=ssl.create_default_context(), ip_range_denylist=["10.0.0.0/99"])


# -- what is counted


async def test_every_request_is_counted_by_endpoint_and_result(certificates: Certificates) -> None:
    seen: list[tuple[str, str]] = []
    tls, trusted = certificates.make("localhost")
    known = {("GET", "/_matrix/federation/v1/version"): {"server": {}}}
    async with (
        https_server(json_app(known), tls) as port,
        transport_for(trusted, observe=lambda *what: seen.append(what)) as transport,
    ):
        server = f"localhost:{port}"
        await transport.get_json(server, "/_matrix/federation/v1/version", max_bytes=1000)
        with pytest.raises(HttpError):
            await transport.get_json(
                server, "/_matrix/federation/v1/state_ids/!r?event_id=a", max_bytes=1000
            )
        with pytest.raises(TransportError):
            await transport.get_json(
                "localhost:1", "/_matrix/federation/v1/event/$e", max_bytes=1000
            )
    assert seen == [("version", "ok"), ("state_ids", "404"), ("event", "failed")]
