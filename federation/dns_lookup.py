"""DNS, as server discovery needs it: addresses of a host, and SRV records."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

MAX_ADDRESSES: Final = 8
"""Addresses of one host that are looked at."""
MAX_SRV_RECORDS: Final = 10
"""SRV records of one name that are looked at."""
_CACHE_ENTRIES: Final = 20_000


class DnsError(Exception):
    """A name that cannot be resolved; the message says why."""


class SrvTarget(NamedTuple):
    """Where an SRV record points to."""

    host: str
    port: int


class DnsLookup:
    """Looks names up without blocking, with the answers kept as long as they live.

    The hosts file comes first, as for every program on the machine, and `localhost` is the
    loopback interface whatever DNS says (RFC 6761).

    Args:
        resolver: which DNS servers to ask; by default those of the system.
        hosts_path: the hosts file; None for none.
        timeout: for one lookup, in seconds.
    """

    def __init__(
        self,
        resolver: dns.asyncresolver.Resolver | None = None,
        *,
        hosts_path: str | None = "/etc/hosts",
        timeout: float = 10.0,
    ) -> None:
        self._resolver = resolver if resolver is not None else _system_resolver()
        self._hosts_path = hosts_path
        self._timeout = timeout

    async def addresses(self, host: str) -> list[str]:
        """The IP addresses of `host`, IPv4 first; CNAMEs are followed.

        Raises:
            DnsError: it has none, or DNS does not answer.
        """
        host = host.rstrip(".").lower()
        local = self._from_hosts_file(host)
        if local:
            return local[:MAX_ADDRESSES]
        if host == "localhost":
            return ["127.0.0.1", "::1"]
        found: list[str] = []
        failures: list[str] = []
        for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
            try:
                found += [record.address for record in await self._records(host, kind)]
            except DnsError as error:
                failures.append(str(error))
        if not found:
            raise DnsError(failures[0] if failures else f"{host} has no address in DNS")
        return found[:MAX_ADDRESSES]

    async def srv(self, name: str) -> list[SrvTarget] | None:
        """The targets of the SRV record at `name`, in the order in which to try them.

        Returns:
            None where there is no such record; an empty list where it says that there is no
            such service (RFC 2782, a target of ".").

        Raises:
            DnsError: DNS does not answer.
        """
        records = await self._records(name.rstrip("."), dns.rdatatype.SRV)
        if not records:
            return None
        return [
            SrvTarget(target, record.port)
            for record in _in_order(records)
            if (target := record.target.to_text(omit_final_dot=True)) and target != "."
        ][:MAX_SRV_RECORDS]

    async def _records(self, name: str, kind: dns.rdatatype.RdataType) -> list[Any]:
        try:
            answer = await self._resolver.resolve(
                name + ".", kind, raise_on_no_answer=False, lifetime=self._timeout
            )
        except dns.resolver.NXDOMAIN:
            return []
        except dns.exception.DNSException as error:
            raise DnsError(f"DNS lookup of {name} failed: {_first_line(error)}") from None
        return list(answer.rrset or ())

    def _from_hosts_file(self, host: str) -> list[str]:
        if self._hosts_path is None:
            return []
        try:
            lines = Path(self._hosts_path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        found = []
        for line in lines.splitlines():
            address, *names = line.partition("#")[0].split() or [""]
            if host in (name.lower() for name in names):
                found.append(address)
        return sorted(dict.fromkeys(found), key=lambda address: ":" in address)


def _system_resolver() -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver()
    except dns.resolver.NoResolverConfiguration:
        resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.cache = dns.resolver.LRUCache(_CACHE_ENTRIES)
    return resolver


def _in_order(records: Iterable[SRV]) -> list[SRV]:
    """SRV records by priority, and by weighted chance within one (RFC 2782)."""
    return sorted(
        records,
        key=lambda record: (record.priority, -(random.random() ** (1 / (record.weight + 0.01)))),
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
