"""Delegation by `https://<host>/.well-known/matrix/server`.

Source: server-server API, "Resolving server names", step 3.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from federation.address_policy import AddressPolicy
from federation.canonical_json import parse_json
from federation.dns_lookup import DnsError, DnsLookup
from federation.errors import FederationError, TransportError
from federation.https import Endpoint, HttpsConnections, Response, Timeouts
from federation.identifiers import parse_server_name

PATH: Final = "/.well-known/matrix/server"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,12})", re.IGNORECASE)
_NO_CACHE = re.compile(r"(?:^|,)\s*(?:no-store|no-cache)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WellKnownLimits:
    """Bounds, in seconds, bytes and numbers.

    Attributes:
        lifetime: of an answer that does not say how long it holds.
        min_lifetime, max_lifetime: bounds on what an answer may say.
        first_failure_lifetime, max_failure_lifetime: a failure is not tried again for so long;
            it doubles with each failure in a row.
        body_bytes: the largest answer.
        redirects: how many are followed.
        total: for the whole lookup, redirects and all.
        entries: hosts kept in the cache.
    """

    lifetime: float = 24 * 3600
    min_lifetime: float = 300
    max_lifetime: float = 48 * 3600
    first_failure_lifetime: float = 60
    max_failure_lifetime: float = 3600
    body_bytes: int = 50 * 1024
    redirects: int = 5
    total: float = 30.0
    entries: int = 10_000


class _Cached(NamedTuple):
    """What is known of a host.

    Attributes:
        delegated: the delegated server name, None where there is no usable answer.
        until: when to ask again.
        fetched: when `delegated` was last confirmed.
        failures: in a row.
    """

    delegated: str | None
    until: float
    fetched: float
    failures: int


class WellKnown:
    """Looks delegations up and keeps them.

    Args:
        port: where the files are; 443 but for tests.
        clock: seconds that only ever grow.
    """

    def __init__(
        self,
        dns: DnsLookup,
        policy: AddressPolicy,
        connections: HttpsConnections,
        *,
        limits: WellKnownLimits | None = None,
        timeouts: Timeouts | None = None,
        port: int = 443,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dns = dns
        self._policy = policy
        self._connections = connections
        self._limits = limits or WellKnownLimits()
        self._timeouts = timeouts or Timeouts(connect=10.0, first_byte=10.0, idle=10.0)
        self._port = port
        self._clock = clock
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[str | None]] = {}

    async def lookup(self, host: str) -> str | None:
        """The server name that `host` delegates to, or None: every kind of failure is None."""
        host = host.lower()
        cached = self._cache.get(host)
        if cached is not None and self._clock() < cached.until:
            self._cache.move_to_end(host)
            return cached.delegated
        task = self._under_way.get(host)
        if task is None:
            task = asyncio.create_task(self._refresh(host, cached))
            self._under_way[host] = task
            task.add_done_callback(lambda _: self._under_way.pop(host, None))
        # One caller that goes away must not take the answer from the others.
        return await asyncio.shield(task)

    async def _refresh(self, host: str, previous: _Cached | None) -> str | None:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.total):
                delegated, lifetime = await self._fetch(host)
        except (FederationError, DnsError, TimeoutError):
            entry = self._after_failure(previous)
        else:
            now = self._clock()
            entry = _Cached(delegated, now + lifetime, now, 0)
        self._cache[host] = entry
        self._cache.move_to_end(host)
        while len(self._cache) > limits.entries:
            self._cache.popitem(last=False)
        return entry.delegated

    def _after_failure(self, previous: _Cached | None) -> _Cached:
        limits, now = self._limits, self._clock()
        failures = previous.failures + 1 if previous is not None else 1
        wait = min(
            limits.first_failure_lifetime * 2.0 ** min(failures - 1, 30),
            limits.max_failure_lifetime,
        )
        # A server that is down for a moment keeps its delegation, for as long as one may be kept.
        if previous is not None and now < previous.fetched + limits.max_lifetime:
            return _Cached(previous.delegated, now + wait, previous.fetched, failures)
        return _Cached(None, now + wait, now - limits.max_lifetime, failures)

    async def _fetch(self, host: str) -> tuple[str, float]:
        """The delegated name and its lifetime in seconds."""
        url = urlsplit(f"https://{_bracketed(host)}{PATH}")
        port = self._port
        for _ in range(self._limits.redirects + 1):
            endpoint = await self._endpoint(host, url, port)
            target = (url.path or "/") + (f"?{url.query}" if url.query else "")
            async with self._connections.request(
                host, endpoint, "GET", target, timeouts=self._timeouts
            ) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(host, response)
                location = response.headers.get("Location", "")
            url, port = _redirected(host, url, location, self._port)
        raise TransportError(host, "its .well-known redirects too often")

    async def _endpoint(self, host: str, url: SplitResult, port: int) -> Endpoint:
        name = parse_server_name(_bracketed(url.hostname or ""))
        addresses = [name.host] if name.is_ip_literal else await self._dns.addresses(name.host)
        for address in addresses:
            if self._policy.allows(address):
                return Endpoint(address, port, url.netloc, name.host)
        raise TransportError(host, "its .well-known is at an address that is on the deny list")

    async def _read(self, host: str, response: Response) -> tuple[str, float]:
        if response.status != 200:
            raise TransportError(host, f"its .well-known answered {response.status}")
        answer = parse_json(await response.read(self._limits.body_bytes))
        delegated = answer.get("m.server") if isinstance(answer, dict) else None
        if not isinstance(delegated, str):
            raise TransportError(host, "its .well-known has no `m.server`")
        parse_server_name(delegated)
        limits = self._limits
        stated = _stated_lifetime(response.headers)
        lifetime = limits.lifetime if stated is None else stated
        return delegated, min(max(lifetime, limits.min_lifetime), limits.max_lifetime)


def _redirected(
    host: str, url: SplitResult, location: str, default_port: int
) -> tuple[SplitResult, int]:
    try:
        following = urlsplit(urljoin(url.geturl(), location))
        port = following.port or default_port
    except ValueError:
        raise TransportError(host, "its .well-known redirects to a malformed address") from None
    if following.scheme != "https" or not following.hostname or following.username is not None:
        raise TransportError(host, "its .well-known redirects to something other than https")
    return following, port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stated_lifetime(headers: Mapping[str, str]) -> float | None:
    """How long an answer says it holds, in seconds; None where it does not say."""
    cache_control = headers.get("Cache-Control", "")
    if _NO_CACHE.search(cache_control):
        return 0.0
    match = _MAX_AGE.search(cache_control)
    if match:
        return float(match[1])
    expires = headers.get("Expires")
    if expires is None:
        return None
    try:
        moments = [email.utils.parsedate_to_datetime(text) for text in (expires, headers["Date"])]
        return (moments[0] - moments[1]).total_seconds()
    except (ValueError, TypeError, KeyError):
        # RFC 9111: an `Expires` that is no date is in the past; without `Date` it says nothing.
        return 0.0 if "Date" in headers else None
