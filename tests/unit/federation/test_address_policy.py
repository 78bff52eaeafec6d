"""Which addresses may be connected to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.address_policy import DEFAULT_IP_RANGE_DENYLIST, AddressPolicy
from federation.errors import InvalidAddressRange


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "127.0.0.1",
        "127.255.255.255",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fd12::1",
        "ff02::1",
        "fec0::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::10.0.0.1",
        "localhost",
        "010.0.0.1",
        "",
    ],
)
def test_denied_by_default(address: str) -> None:
    assert not AddressPolicy().allows(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "172.32.0.1", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_allowed_by_default(address: str) -> None:
    assert AddressPolicy().allows(address)


def test_the_allow_list_makes_exceptions() -> None:
    policy = AddressPolicy(DEFAULT_IP_RANGE_DENYLIST, ["127.0.0.0/8", "::1/128"])
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "::1"):
        assert policy.allows(address)
    for address in ("10.0.0.1", "::2:1", "0.0.0.0"):
        assert policy.allows(address) == (address == "::2:1")


def test_an_empty_deny_list_still_denies_the_unspecified_addresses() -> None:
    policy = AddressPolicy(())
    assert policy.allows("10.0.0.1")
    assert not policy.allows("0.0.0.0")
    assert not policy.allows("::")


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_as_what_it_maps(address: ipaddress.IPv4Address) -> None:
    policy = AddressPolicy()
    assert policy.allows(f"::ffff:{address}") == policy.allows(str(address))


@pytest.mark.parametrize("text", ["10.0.0.0/33", "loopback", "", "1.2.3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    for lists in ([text], []), ([], [text]):
        with pytest.raises(InvalidAddressRange, match="is not an IP range"):
            AddressPolicy(*lists)
