"""A joining server, reduced to signed requests and their raw answers."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from federation.hashing import compute_event_id
from federation.room_versions import EventFormat, get_room_version
from federation.signing import SigningKey, generate_signing_key, sign_event
from federation.simulator import SimulatedFederation
from federation.tls import client_tls_context
from federation.x_matrix import authorization_header

JOINING = "joining.test"
USER = f"@user:{JOINING}"


@dataclass
class Reply:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class JoiningServer:
    """Signs requests as `server_name` and sends them with plain aiohttp."""

    def __init__(self, session: aiohttp.ClientSession, context: ssl.SSLContext) -> None:
        self.server_name = JOINING
        self.key: SigningKey = generate_signing_key()
        self._session = session
        self._context = context

    async def ask(
        self,
        destination: str,
        method: str,
        target: str,
        content: Any = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One signed request; `headers` replaces the signature."""
        target = "/_matrix/federation" + target
        if headers is None:
            header = authorization_header(
                self.server_name, self.key, destination, method, target, content
            )
            headers = {"Authorization": header}
        async with self._session.request(
            method,
            URL(f"https://{destination}{target}", encoded=True),
            json=content,
            headers=headers,
            ssl=self._context,
        ) as response:
            return Reply(response.status, await response.read())

    async def make_join(self, destination: str, room_id: str, *versions: str) -> Reply:
        query = "&".join(f"ver={version}" for version in versions)
        target = f"/v1/make_join/{quote(room_id, safe='')}/{quote(USER, safe='')}?{query}"
        return await self.ask(destination, "GET", target)

    def sign_join(self, template: dict[str, Any], room_version: str) -> tuple[str, dict[str, Any]]:
        version = get_room_version(room_version)
        pdu = {**template, "origin_server_ts": int(time.time() * 1000)}
        if version.event_format is EventFormat.V1:
            pdu["event_id"] = f"$join:{self.server_name}"
        pdu = sign_event(pdu, version, self.server_name, self.key)
        return compute_event_id(pdu, version), pdu

    async def send_join(
        self, destination: str, room_id: str, event_id: str, pdu: Any, query: str = ""
    ) -> Reply:
        target = f"/v2/send_join/{quote(room_id, safe='')}/{quote(event_id, safe='')}{query}"
        return await self.ask(destination, "PUT", target, pdu)

    async def join(
        self, destination: str, room_id: str, room_version: str = "10"
    ) -> tuple[str, Any]:
        """A whole partial join: the join event's id and the answer of `/send_join`."""
        template = await self.make_join(destination, room_id, room_version)
        assert template.status == 200, template.body
        event_id, pdu = self.sign_join(template.json["event"], room_version)
        reply = await self.send_join(destination, room_id, event_id, pdu, "?omit_members=true")
        assert reply.status == 200, reply.body
        return event_id, reply.json

    async def about(self, destination: str, endpoint: str, room_id: str, event_id: str) -> Reply:
        """`/state_ids` or `/state` at an event."""
        target = f"/v1/{endpoint}/{quote(room_id, safe='')}?event_id={quote(event_id, safe='')}"
        return await self.ask(destination, "GET", target)


@contextlib.asynccontextmanager
async def joining_server(
    simulated: SimulatedFederation, *, trusted: bool = True
) -> AsyncIterator[JoiningServer]:
    """A server that can talk to `simulated`, verifies its certificate, and is known to it."""
    context = client_tls_context(ca_path=simulated.certificate.certificate)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        server = JoiningServer(session, context)
        if trusted:
            simulated.trust(server.server_name, server.key.key_id, server.key.verify_key)
        yield server
