"""Who sent a request: X-Matrix signatures, and the signatures on events.

Source: server-server API, "Request Authentication".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

from federation.canonical_json import parse_json
from federation.errors import (
    FederationError,
    InvalidIdentifier,
    InvalidJson,
    InvalidSignature,
)
from federation.hashing import content_hash, essential_part
from federation.identifiers import parse_server_name
from federation.room_versions import RoomVersion
from federation.signing import (
    decode_base64,
    encode_base64,
    required_signers_of,
    verify_signed_json,
)
from federation.simulator.answers import RefusedError
from federation.simulator.world import World
from federation.x_matrix import parse_authorization, verify_request

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_KEY_TIMEOUT_S = 5.0
_MAX_KEY_BYTES = 65536


class Authenticator:
    """Checks requests and events against the keys of their senders.

    A key that is not known is asked of the server itself if that is on loopback; of no one else.
    """

    def __init__(self, world: World, server_name: str) -> None:
        self._world = world
        self._server_name = server_name

    async def check_request(self, request: web.Request, content: Any) -> str:
        """The server that sent `request`, whose body is `content` (None: it has no body).

        Raises:
            RefusedError: 401, the signature is missing or wrong.
        """
        try:
            header = parse_authorization(request.headers.get("Authorization", ""))
            key = await self.find_key(header.origin, header.key_id)
            if key is None:
                raise InvalidSignature(f"no key {header.key_id} of {header.origin} is known")
            verify_request(
                header, key, self._server_name, request.method, request.raw_path, content
            )
        except InvalidSignature as error:
            raise RefusedError(401, "M_UNAUTHORIZED", str(error)) from None
        return header.origin

    async def check_event(self, pdu: Mapping[str, Any], version: RoomVersion) -> None:
        """Check the content hash of an event and the signatures it must have.

        The signature of a server simulated here may be missing: it is added by whoever answers.

        Raises:
            RefusedError: 400, one is missing or wrong.
        """
        if pdu.get("hashes") != {"sha256": encode_base64(content_hash(pdu))}:
            raise RefusedError(400, "M_INVALID_PARAM", "The event's content hash is wrong")
        essential = essential_part(pdu, version)
        signatures = pdu.get("signatures")
        if type(signatures) is not dict:
            raise RefusedError(400, "M_INVALID_PARAM", "The event has no signatures")
        for server_name in sorted(required_signers_of(pdu, version)):
            of_server = signatures.get(server_name, {})
            if not of_server and server_name == self._server_name:
                continue
            if type(of_server) is not dict or not of_server:
                raise RefusedError(400, "M_INVALID_PARAM", f"No signature of {server_name}")
            for key_id in of_server:
                key = await self.find_key(server_name, key_id)
                if key is None:
                    raise RefusedError(
                        400, "M_INVALID_PARAM", f"No key {key_id} of {server_name} is known"
                    )
                try:
                    verify_signed_json(
                        {**essential, "signatures": signatures}, server_name, key, key_id
                    )
                except InvalidSignature as error:
                    raise RefusedError(400, "M_INVALID_PARAM", str(error)) from None

    async def find_key(self, server_name: str, key_id: str) -> bytes | None:
        """The public key, known already or asked of the server."""
        key = self._world.verify_key(server_name, key_id)
        if key is not None or server_name in self._world.identities:
            return key
        try:
            if parse_server_name(server_name).host not in _LOOPBACK:
                return None
            keys = await _ask_for_keys(server_name)
        except (
            aiohttp.ClientError,
            TimeoutError,
            FederationError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):
            return None
        for found_id, found in keys.items():
            self._world.verify_keys[server_name, found_id] = found
        return keys.get(key_id)


async def _ask_for_keys(server_name: str) -> dict[str, bytes]:
    timeout = aiohttp.ClientTimeout(total=_KEY_TIMEOUT_S)
    url = f"https://{server_name}/_matrix/key/v2/server"
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, ssl=False, allow_redirects=False) as response,
    ):
        answer = parse_json(await response.content.read(_MAX_KEY_BYTES))
    if answer["server_name"] != server_name:
        raise InvalidIdentifier(f"{server_name} sent the keys of another server")
    keys = {key_id: decode_base64(entry["key"]) for key_id, entry in answer["verify_keys"].items()}
    for key_id, key in keys.items():
        verify_signed_json(answer, server_name, key, key_id)
    return keys


async def read_json(request: web.Request) -> Any:
    """The request's body; None if there is none.

    Raises:
        RefusedError: 400, it is not JSON.
    """
    body = await request.read()
    if not body:
        return None
    try:
        return parse_json(body)
    except InvalidJson as error:
        raise RefusedError(400, "M_NOT_JSON", str(error)) from None
