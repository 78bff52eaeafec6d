"""Which IP addresses may be connected to.

Server names come from strangers, and a name can resolve to anything: to the loopback interface, to
a router, to a cloud's metadata service. The lists apply to the resolved address of every
connection, those for `.well-known` and its redirects included.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

from federation.errors import InvalidAddressRange

DEFAULT_IP_RANGE_DENYLIST: Final[tuple[str, ...]] = (
    # Loopback, private networks, shared address space of carriers.
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    # Protocol assignments, link-local, the former 6to4 relays.
    "192.0.0.0/24",
    "169.254.0.0/16",
    "192.88.99.0/24",
    # Benchmarks, documentation, multicast.
    "198.18.0.0/15",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    # The same for IPv6: loopback, link-local, unique local, documentation, multicast, site-local.
    "::1/128",
    "fe80::/10",
    "fc00::/7",
    "2001:db8::/32",
    "ff00::/8",
    "fec0::/10",
)
"""What is denied where the operator says nothing: the ranges that Synapse denies by default."""

_ALWAYS_DENIED: Final = ("0.0.0.0/32", "::/128")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressPolicy:
    """The deny list, and the allow list that makes exceptions from it.

    Args:
        denylist: IP ranges in CIDR notation, or single addresses. The unspecified addresses
            `0.0.0.0` and `::` are denied besides.
        allowlist: the same; what it names is allowed whatever `denylist` says.

    Raises:
        InvalidAddressRange: an entry is neither a range nor an address.
    """

    def __init__(
        self,
        denylist: Iterable[str] = DEFAULT_IP_RANGE_DENYLIST,
        allowlist: Iterable[str] = (),
    ) -> None:
        self._denied = _networks((*denylist, *_ALWAYS_DENIED))
        self._allowed = _networks(allowlist)

    def allows(self, address: str) -> bool:
        """Whether `address` may be connected to. What is no IP address at all may not.

        An IPv6 address that carries an IPv4 address (mapped, compatible, 6to4, NAT64) is judged
        by both.
        """
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return all(self._allows(form) for form in _forms(parsed))

    def _allows(self, address: _Address) -> bool:
        if any(address in network for network in self._allowed):
            return True
        return not any(address in network for network in self._denied)


def _networks(ranges: Iterable[str]) -> tuple[_Network, ...]:
    networks = []
    for text in ranges:
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except (ValueError, TypeError):
            raise InvalidAddressRange(
                f"{text!r} is not an IP range: write it as 10.0.0.0/8 or fc00::/7"
            ) from None
    return tuple(networks)


def _forms(address: _Address) -> Iterator[_Address]:
    """The address itself and the IPv4 address within it."""
    if not isinstance(address, ipaddress.IPv6Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        # The system connects to the IPv4 address; no list would name the mapped range.
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address in _NAT64 or (address in _IPV4_COMPATIBLE and int(address) > 0xFFFF):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
