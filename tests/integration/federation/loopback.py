"""Real servers on 127.0.0.1 for the wire's tests: HTTPS, raw TLS, DNS over UDP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from aiohttp import web

from federation.tls import self_signed_certificate, server_tls_context

LOOPBACK = ("127.0.0.0/8", "::1/128")

RawHandler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Gets the head of the request and writes whatever it likes."""


class Certificates:
    """Self-signed certificates in a directory, one for each set of names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def make(self, *names: str) -> tuple[ssl.SSLContext, Path]:
        """A server context, and the certificate's file to be trusted."""
        self._count += 1
        pem = self_signed_certificate(names)
        certificate = self._directory / f"{self._count}.crt"
        key = self._directory / f"{self._count}.key"
        certificate.write_bytes(pem.certificate)
        key.write_bytes(pem.private_key)
        return server_tls_context(certificate, key), certificate


@asynccontextmanager
async def https_server(
    app: web.Application, tls: ssl.SSLContext, address: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Serves `app`; gives the port."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, 0, ssl_context=tls)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(handler: RawHandler, tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """A server that reads the head of a request and leaves the rest to `handler`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await handler(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def head(body_length: int | None, status: str = "200 OK", **headers: str) -> bytes:
    """The head of an HTTP answer; without a length the body ends with the connection."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append("Connection: close" if body_length is None else f"Content-Length: {body_length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def json_answer(answer: Any, status: str = "200 OK") -> bytes:
    body = json.dumps(answer).encode()
    return head(len(body), status) + body


@dataclass
class DnsZone:
    """What a DNS server on loopback answers.

    Attributes:
        records: owner name (lower case, no final dot) and type to record texts.
        failing: owner names that are answered with SERVFAIL.
        questions: what was asked, in order.
    """

    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    questions: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, kind: str, *values: str) -> None:
        self.records.setdefault((name, kind), []).extend(values)

    def answer(self, query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA | dns.flags.AA
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        name = question.name.to_text(omit_final_dot=True).lower()
        self.questions.append((name, kind))
        if name in self.failing:
            response.set_rcode(dns.rcode.SERVFAIL)
            return response
        owner = name
        while ("CNAME", owner) != (kind, owner) and (owner, "CNAME") in self.records:
            target = self.records[owner, "CNAME"][0]
            response.answer.append(dns.rrset.from_text(owner + ".", 60, "IN", "CNAME", target))
            owner = target.rstrip(".")
        values = self.records.get((owner, kind), [])
        if values:
            response.answer.append(dns.rrset.from_text(owner + ".", 60, "IN", kind, *values))
        elif not any(known == owner for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response


class _DnsProtocol(asyncio.DatagramProtocol):
    def __init__(self, zone: DnsZone) -> None:
        self._zone = zone

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(self._zone.answer(dns.message.from_wire(data)).to_wire(), addr)


@asynccontextmanager
async def dns_server(zone: DnsZone) -> AsyncIterator[dns.asyncresolver.Resolver]:
    """A DNS server on loopback, and a resolver that asks it and nobody else."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _DnsProtocol(zone), local_addr=("127.0.0.1", 0)
    )
    try:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = transport.get_extra_info("sockname")[1]
        yield resolver
    finally:
        transport.close()


def json_app(routes: Mapping[tuple[str, str], Any]) -> web.Application:
    """An application that gives fixed JSON answers, by method and path."""
    app = web.Application()
    for (method, path), answer in routes.items():

        async def handle(_: web.Request, answer: Any = answer) -> web.Response:
            return web.json_response(answer)

        app.router.add_route(method, path, handle)
    return app
