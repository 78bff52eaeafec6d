"""Where keys are asked for: the servers themselves, and notaries.

Source: server-server API, "Retrieving server keys".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from federation.errors import InvalidKeyResponse, TransportError
from federation.key_responses import KeyResponse, check_key_response, check_notary_signature
from federation.transport import Timeouts, Transport

KeyPair = tuple[str, str]
"""Server name and key id."""

_SERVER_TIMEOUTS: Final = Timeouts(connect=10.0, first_byte=10.0, idle=10.0)
_NOTARY_TIMEOUTS: Final = Timeouts(connect=10.0, first_byte=60.0, idle=30.0)
_MAX_NOTARY_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TrustedKeyServer:
    """A notary.

    Attributes:
        server_name: its name.
        verify_keys: its keys, id to 32 bytes, where the operator has pinned them. Without, its
            keys are asked of itself first; TLS then vouches for them.
    """

    server_name: str
    verify_keys: Mapping[str, bytes] = field(default_factory=dict)


class ServerKeys:
    """Asks servers for their own keys, each once at a time.

    Args:
        at_once: how many servers at the same time.
        timeout: for one server, discovery and retries included, in seconds.
        max_bytes: the largest answer.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        at_once: int = 50,
        timeout: float = 20.0,
        max_bytes: int = 128 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._transport = transport
        self._slots = asyncio.Semaphore(at_once)
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[KeyResponse]] = {}

    async def fetch(self, server_name: str) -> KeyResponse:
        """The keys that a server publishes, signed by itself.

        Raises:
            TransportError, HttpError: it does not answer.
            InvalidKeyResponse: its answer is not signed, or malformed.
        """
        task = self._under_way.get(server_name)
        if task is None:
            task = asyncio.create_task(self._fetch(server_name))
            self._under_way[server_name] = task
            task.add_done_callback(lambda _: self._under_way.pop(server_name, None))
        # One caller that goes away must not take the answer from the others.
        return await asyncio.shield(task)

    async def _fetch(self, server_name: str) -> KeyResponse:
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout):
                    answer = await self._transport.get_json(
                        server_name,
                        "/_matrix/key/v2/server",
                        max_bytes=self._max_bytes,
                        timeouts=_SERVER_TIMEOUTS,
                    )
            except TimeoutError:
                raise TransportError(server_name, f"no keys in {self._timeout:g} s") from None
        return check_key_response(answer, server_name, int(self._clock() * 1000))


class Notary:
    """Asks one notary for the keys of many servers.

    Args:
        server_keys: finds the notary's own keys, where they are not pinned.
        servers_per_query: servers in one request.
        at_once: requests at the same time.
        max_bytes_per_server: the answer to one request may be so large for each server in it.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        notary: TrustedKeyServer,
        transport: Transport,
        server_keys: ServerKeys,
        *,
        servers_per_query: int = 200,
        at_once: int = 4,
        max_bytes_per_server: int = 128 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.server_name = notary.server_name
        self._pinned_keys = notary.verify_keys
        self._transport = transport
        self._server_keys = server_keys
        self._servers_per_query = servers_per_query
        self._slots = asyncio.Semaphore(at_once)
        self._max_bytes_per_server = max_bytes_per_server
        self._clock = clock
        self._own_response: KeyResponse | None = None

    async def fetch(self, wanted: Mapping[KeyPair, int]) -> list[KeyResponse]:
        """What the notary has of the keys in `wanted`, checked, in no order.

        Answers about servers that were not asked for, or that are not signed as they must be by
        the server and the notary, are left out.

        Args:
            wanted: for each key the time, ms since the epoch, until which it should be valid.

        Raises:
            TransportError, HttpError: the notary does not answer.
            InvalidKeyResponse: its own keys cannot be had.
        """
        keys = await self._keys()
        queries: dict[str, dict[str, dict[str, int]]] = {}
        for (server_name, key_id), until in wanted.items():
            queries.setdefault(server_name, {})[key_id] = {"minimum_valid_until_ts": until}
        names = list(queries)
        batches = [
            {name: queries[name] for name in names[start : start + self._servers_per_query]}
            for start in range(0, len(names), self._servers_per_query)
        ]
        answers = await asyncio.gather(*(self._query(batch, keys) for batch in batches))
        return [response for responses in answers for response in responses]

    async def _query(
        self, batch: dict[str, dict[str, dict[str, int]]], notary_keys: Mapping[str, bytes]
    ) -> list[KeyResponse]:
        async with self._slots:
            answer = await self._transport.post_json(
                self.server_name,
                "/_matrix/key/v2/query",
                {"server_keys": batch},
                max_bytes=min(self._max_bytes_per_server * (len(batch) + 8), _MAX_NOTARY_BYTES),
                timeouts=_NOTARY_TIMEOUTS,
                # It only asks, though it is a POST.
                repeatable=True,
            )
        return await asyncio.to_thread(self._check, answer, batch.keys(), notary_keys)

    def _check(
        self, answer: Mapping[str, Any], asked_for: Any, notary_keys: Mapping[str, bytes]
    ) -> list[KeyResponse]:
        responses = []
        listed = answer.get("server_keys")
        for entry in listed if isinstance(listed, list) else ():
            server_name = entry.get("server_name") if isinstance(entry, dict) else None
            if not isinstance(server_name, str) or server_name not in asked_for:
                continue
            try:
                check_notary_signature(entry, self.server_name, notary_keys)
                responses.append(check_key_response(entry, server_name, int(self._clock() * 1000)))
            except InvalidKeyResponse:
                # The server itself is asked next, which gives its own reason if it fails too.
                continue
        return responses

    async def _keys(self) -> Mapping[str, bytes]:
        """The notary's keys: those pinned, or those it publishes itself."""
        if self._pinned_keys:
            return self._pinned_keys
        known = self._own_response
        if known is None or self._clock() * 1000 >= known.valid_until_ts:
            known = self._own_response = await self._server_keys.fetch(self.server_name)
        return {key.key_id: key.verify_key for key in known.keys if not key.is_old}
