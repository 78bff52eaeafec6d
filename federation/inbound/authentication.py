"""Who sent a request: the X-Matrix signature, checked with the key ring.

Source: server-server API, "Request Authentication".
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from federation.checks import VerifyKey
from federation.errors import InvalidJson, InvalidSignature
from federation.inbound.errors import RequestRefused
from federation.x_matrix import XMatrix, parse_authorization, verify_request

FetchKeys = Callable[
    [Mapping[tuple[str, str], int]], Awaitable[Mapping[tuple[str, str], VerifyKey]]
]
"""Finds keys: `(server, key id)` to the time, ms, until which the key should be valid."""

KEY_LOOKUPS_AT_ONCE: Final = 50
"""More strangers than this wait for each other: a request may make us ask a server for its key."""
REMEMBERED_KEYS: Final = 10_000


class RequestAuthenticator:
    """Checks the signatures of requests that are meant for us."""

    def __init__(
        self,
        server_name: str,
        fetch_keys: FetchKeys,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since the epoch."""
        self._server_name = server_name
        self._fetch_keys = fetch_keys
        self._clock = clock
        self._lookups = asyncio.Semaphore(KEY_LOOKUPS_AT_ONCE)
        self._known: OrderedDict[tuple[str, str], VerifyKey] = OrderedDict()

    async def origin_of(
        self, authorization: str, method: str, target: str, content: Mapping[str, Any] | None
    ) -> str:
        """The server that sent a request.

        Who has spoken to us before does not wait for strangers whose keys have to be looked for.

        Args:
            authorization: the header.
            target: path and query exactly as they came.
            content: the JSON body, None where there is none.

        Raises:
            RequestRefused: 401, the signature is missing, wrong, or not to be checked.
        """
        try:
            header = parse_authorization(authorization)
            key = await self._key_of(header)
            await asyncio.to_thread(
                verify_request, header, key, self._server_name, method, target, content
            )
        except (InvalidSignature, InvalidJson) as error:
            raise RequestRefused(401, "M_UNAUTHORIZED", str(error)) from None
        return header.origin

    async def _key_of(self, header: XMatrix) -> bytes:
        if header.origin == self._server_name:
            raise InvalidSignature("the request claims to come from this server")
        if header.destination not in (None, self._server_name):
            raise InvalidSignature(f"the request is meant for {header.destination!a}, not for us")
        now_ms = int(self._clock() * 1000)
        wanted = (header.origin, header.key_id)
        known = self._known.get(wanted)
        if known is not None and known.valid_until_ts >= now_ms:
            self._known.move_to_end(wanted)
            return known.key
        async with self._lookups:
            keys = await self._fetch_keys({wanted: now_ms})
        key = keys.get(wanted)
        if key is None:
            raise InvalidSignature(f"the key {header.key_id!a} of {header.origin} cannot be had")
        if key.valid_until_ts < now_ms:
            raise InvalidSignature(f"the key {header.key_id!a} of {header.origin} has expired")
        self._known[wanted] = key
        if len(self._known) > REMEMBERED_KEYS:
            self._known.popitem(last=False)
        return key.key
