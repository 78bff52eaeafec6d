"""From a server name to the addresses that may be connected to.

Source: server-server API, "Resolving server names"; the steps below are numbered as there.
"""

from __future__ import annotations

from typing import Final

from federation.address_policy import AddressPolicy
from federation.dns_lookup import DnsError, DnsLookup, SrvTarget
from federation.errors import InvalidIdentifier, TransportError
from federation.https import Endpoint
from federation.identifiers import ServerName, parse_server_name
from federation.well_known import WellKnown

DEFAULT_PORT: Final = 8448
MAX_ENDPOINTS: Final = 10
"""Endpoints of one server that are tried."""
_SRV_SERVICES: Final = ("_matrix-fed._tcp", "_matrix._tcp")

__all__ = ["DEFAULT_PORT", "Endpoint", "Resolver"]


class Resolver:
    """Resolves server names.

    Args:
        dns: which DNS to ask.
        policy: which addresses may be connected to.
        well_known: where delegations come from.
    """

    def __init__(self, dns: DnsLookup, policy: AddressPolicy, well_known: WellKnown) -> None:
        self._dns = dns
        self._policy = policy
        self._well_known = well_known

    async def resolve(self, server_name: str) -> list[Endpoint]:
        """The endpoints of a server, in the order in which to try them; at least one.

        Raises:
            TransportError: the name is malformed, does not resolve, or resolves to nothing but
                addresses on the deny list.
        """
        name = _parse(server_name, server_name)
        if not name.is_ip_literal and name.port is None:
            delegated = await self._well_known.lookup(name.host)
            if delegated is not None:
                return await self._resolve_directly(server_name, delegated)
        return await self._resolve_directly(server_name, server_name)

    async def _resolve_directly(self, server_name: str, effective_name: str) -> list[Endpoint]:
        """Steps 1, 2 and 4 to 6, which are those of step 3 for a delegated name."""
        name = _parse(server_name, effective_name)
        if name.is_ip_literal:
            targets = [(name.host, name.port or DEFAULT_PORT)]
        elif name.port is not None:
            targets = await self._addresses(server_name, [SrvTarget(name.host, name.port)])
        else:
            srv = await self._srv(server_name, name.host)
            targets = await self._addresses(
                server_name, srv or [SrvTarget(name.host, DEFAULT_PORT)]
            )
        allowed = [target for target in targets if self._policy.allows(target[0])]
        if not allowed:
            raise TransportError(
                server_name,
                f"its address {targets[0][0]} is on the deny list (ip_range_denylist): "
                "no connection is made",
            )
        return [
            Endpoint(address, port, effective_name, name.host)
            for address, port in allowed[:MAX_ENDPOINTS]
        ]

    async def _srv(self, server_name: str, host: str) -> list[SrvTarget] | None:
        for service in _SRV_SERVICES:
            try:
                targets = await self._dns.srv(f"{service}.{host}")
            except DnsError:
                # Some DNS servers answer SRV questions with an error; the address may be there.
                continue
            if targets == []:
                raise TransportError(
                    server_name, f"its SRV record {service}.{host} says that it has no such service"
                )
            if targets is not None:
                return targets
        return None

    async def _addresses(self, server_name: str, hosts: list[SrvTarget]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        failure: DnsError | None = None
        for host, port in hosts:
            try:
                found += [(address, port) for address in await self._dns.addresses(host)]
            except DnsError as error:
                failure = failure or error
            if len(found) >= MAX_ENDPOINTS:
                break
        if not found:
            raise TransportError(server_name, str(failure)) from None
        return list(dict.fromkeys(found))


def _parse(server_name: str, name: str) -> ServerName:
    try:
        parsed = parse_server_name(name)
    except InvalidIdentifier as error:
        raise TransportError(str(server_name)[:255], str(error)) from None
    if parsed.port == 0:
        raise TransportError(server_name, f"{name} has port 0, which cannot be connected to")
    return parsed
