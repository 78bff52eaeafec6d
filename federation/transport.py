"""Requests to servers by their names: discovery, retries, HTTP errors, JSON."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import dns.asyncresolver

from federation.address_policy import DEFAULT_IP_RANGE_DENYLIST, AddressPolicy
from federation.canonical_json import encode, parse_json
from federation.discovery import Resolver
from federation.dns_lookup import DnsLookup
from federation.errors import (
    FederationError,
    HttpError,
    InvalidJson,
    InvalidResponse,
    TransportError,
)
from federation.https import (
    BrokenConnection,
    CannotConnect,
    HttpsConnections,
    Response,
    Timeouts,
)
from federation.well_known import WellKnown

__all__ = ["Response", "RetryPolicy", "Timeouts", "Transport", "open_transport"]

_ERROR_BODY_BYTES: Final = 64 * 1024
_TEMPORARY_STATUSES: Final = frozenset({429, 502, 503, 504})


Observe = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request that is safe to repeat is made, times in seconds.

    Attributes:
        attempts: in all; 1 for no retries.
        backoff: the wait before the second attempt; it doubles with each.
        max_retry_after: if the server asks for a longer wait, the request fails at once.
    """

    attempts: int = 3
    backoff: float = 0.5
    max_retry_after: float = 10.0


class Transport:
    """Carries requests to servers.

    Args:
        resolver: finds servers; None of its endpoints is asked twice in one attempt.
        connections: shared with `resolver`; closed by `close`.
        retries: for requests that are safe to repeat.
        observe: told of each request's endpoint, such as "state_ids", and result: "ok", the
            status, or "failed" if there was no answer.
    """

    def __init__(
        self,
        resolver: Resolver,
        connections: HttpsConnections,
        *,
        retries: RetryPolicy | None = None,
        observe: Observe | None = None,
    ) -> None:
        self._resolver = resolver
        self._connections = connections
        self._retries = retries or RetryPolicy()
        self._observe = observe or (lambda endpoint, result: None)

    async def close(self) -> None:
        """Closes all connections."""
        await self._connections.close()

    @asynccontextmanager
    async def request(
        self,
        destination: str,
        method: str,
        target: str,
        *,
        timeouts: Timeouts | None = None,
        content: Mapping[str, Any] | None = None,
        authorization: str | None = None,
        repeatable: bool | None = None,
    ) -> AsyncIterator[Response]:
        """One request to a server, answered with status 200.

        Args:
            destination: the server's name.
            target: path and query, percent-encoded.
            content: the JSON body.
            authorization: the `Authorization` header, where the request is signed.
            repeatable: whether it does no harm to make the request twice; by default GET is.

        Raises:
            HttpError: another status.
            TransportError: no answer, see `federation.https`.
        """
        if repeatable is None:
            repeatable = method == "GET"
        headers = {"Accept": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        body = None
        if content is not None:
            headers["Content-Type"] = "application/json"
            body = encode(content)
        request = _Request(destination, method, target, headers, body, timeouts or Timeouts())
        endpoint = _endpoint_name(target)
        try:
            response, context = await self._open(request, repeatable=repeatable)
            async with context:
                yield response
        except HttpError as error:
            self._observe(endpoint, str(error.status))
            raise
        except TransportError:
            self._observe(endpoint, "failed")
            raise
        self._observe(endpoint, "ok")

    async def get_json(
        self,
        destination: str,
        target: str,
        *,
        max_bytes: int,
        timeouts: Timeouts | None = None,
        authorization: str | None = None,
    ) -> dict[str, Any]:
        """The JSON object that a GET request is answered with. Raises as `request`."""
        async with self.request(
            destination, "GET", target, timeouts=timeouts, authorization=authorization
        ) as response:
            return await read_object(destination, response, max_bytes)

    async def post_json(
        self,
        destination: str,
        target: str,
        content: Mapping[str, Any],
        *,
        max_bytes: int,
        timeouts: Timeouts | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """The JSON object that an unsigned POST is answered with. Raises as `request`."""
        async with self.request(
            destination, "POST", target, timeouts=timeouts, content=content, repeatable=repeatable
        ) as response:
            return await read_object(destination, response, max_bytes)

    async def _open(
        self, request: _Request, *, repeatable: bool
    ) -> tuple[Response, AsyncExitStack]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._open_once(request)
            except (BrokenConnection, HttpError) as error:
                wait = self._wait_before_retry(error, attempt, repeatable)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _open_once(self, request: _Request) -> tuple[Response, AsyncExitStack]:
        """The answer, and the context to leave once it has been read."""
        failure: CannotConnect | None = None
        for endpoint in await self._resolver.resolve(request.destination):
            async with AsyncExitStack() as context:
                try:
                    response = await context.enter_async_context(
                        self._connections.request(
                            request.destination,
                            endpoint,
                            request.method,
                            request.target,
                            timeouts=request.timeouts,
                            headers=request.headers,
                            body=request.body,
                        )
                    )
                except CannotConnect as error:
                    failure = failure or error
                    continue
                if response.status != 200:
                    raise await _http_error(request.destination, response)
                return response, context.pop_all()
        raise failure or CannotConnect(request.destination, "it has no address to connect to")

    def _wait_before_retry(
        self, error: BrokenConnection | HttpError, attempt: int, repeatable: bool
    ) -> float | None:
        """How long to wait before the next attempt, in seconds; None if this was the last."""
        retries = self._retries
        if attempt >= retries.attempts:
            return None
        wait = retries.backoff * 2.0 ** (attempt - 1)
        if isinstance(error, CannotConnect):
            # Nothing was sent, so that even a request with effects may be made again.
            return wait
        if not repeatable:
            return None
        if isinstance(error, HttpError):
            if error.status not in _TEMPORARY_STATUSES:
                return None
            asked = (error.retry_after_ms or 0) / 1000
            return max(wait, asked) if asked <= retries.max_retry_after else None
        return wait


def _endpoint_name(target: str) -> str:
    """`state_ids` for "/_matrix/federation/v1/state_ids/...": without anything that varies."""
    segments = target.partition("?")[0].split("/")
    return segments[4] if len(segments) > 4 else "other"


class _Request(NamedTuple):
    destination: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    timeouts: Timeouts


async def read_object(destination: str, response: Response, max_bytes: int) -> dict[str, Any]:
    """The JSON object that a server answered. Raises InvalidResponse."""
    body = await response.read(max_bytes)
    try:
        answer = parse_json(body)
    except InvalidJson as error:
        raise InvalidResponse(destination, f"the body is {error}") from None
    if not isinstance(answer, dict):
        raise InvalidResponse(destination, "the body is not a JSON object")
    return answer


async def _http_error(destination: str, response: Response) -> HttpError:
    """The error that the answer describes; a body that is no Matrix error is shown shortened."""
    errcode, message, retry_after_ms = "M_UNKNOWN", "", None
    try:
        body = await response.read(_ERROR_BODY_BYTES)
    except FederationError:
        body = b""
    try:
        answer = parse_json(body)
    except InvalidJson:
        message = body.decode("utf-8", "replace")
    else:
        if isinstance(answer, dict):
            errcode = _text(answer.get("errcode")) or errcode
            message = _text(answer.get("error"))
            retry_after_ms = answer.get("retry_after_ms")
    if type(retry_after_ms) is not int or retry_after_ms < 0:
        retry_after_ms = _retry_after_header(response)
    return HttpError(
        destination, response.status, errcode[:100], _on_one_line(message)[:300], retry_after_ms
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _on_one_line(text: str) -> str:
    """A stranger's words, made safe for a log or a terminal."""
    return "".join(
        character if character.isprintable() else " " for character in text[:2000]
    ).strip()


def _retry_after_header(response: Response) -> int | None:
    """`Retry-After` in milliseconds, where it is a number of seconds."""
    text = response.headers.get("Retry-After", "").strip()
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 8 else None


def open_transport(
    *,
    tls: ssl.SSLContext,
    ip_range_denylist: Iterable[str] = DEFAULT_IP_RANGE_DENYLIST,
    ip_range_allowlist: Iterable[str] = (),
    dns_resolver: dns.asyncresolver.Resolver | None = None,
    retries: RetryPolicy | None = None,
    observe: Observe | None = None,
    well_known_port: int = 443,
) -> Transport:
    """A transport with its discovery.

    Args:
        tls: see `federation.tls.client_tls_context`.
        ip_range_denylist, ip_range_allowlist: see `federation.address_policy`.
        dns_resolver: which DNS servers to ask; by default those of the system.
        retries: for requests that are safe to repeat.
        observe: see `Transport`.
        well_known_port: where `.well-known` files are; 443 but for tests.

    Raises:
        InvalidAddressRange: see `AddressPolicy`.
    """
    policy = AddressPolicy(ip_range_denylist, ip_range_allowlist)
    lookup = DnsLookup(dns_resolver)
    connections = HttpsConnections(tls)
    well_known = WellKnown(lookup, policy, connections, port=well_known_port)
    return Transport(
        Resolver(lookup, policy, well_known), connections, retries=retries, observe=observe
    )
