"""Who sent a request, where keys have to be looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from federation.checks import VerifyKey
from federation.inbound import RequestAuthenticator, RequestRefused
from federation.inbound.authentication import KEY_LOOKUPS_AT_ONCE
from federation.signing import SigningKey, generate_signing_key
from federation.x_matrix import authorization_header

US = "ours.test"
FRIEND = "friend.test"
NOW = 1000.0


class Keys:
    """Keys that are found at once, and those of strangers, for which the search does not end."""

    def __init__(self, key: SigningKey, valid_until_ts: int) -> None:
        self.key = key
        self.valid_until_ts = valid_until_ts
        self.searches: list[str] = []
        self.are_stuck = asyncio.Event()

    async def fetch(
        self, needed: Mapping[tuple[str, str], int]
    ) -> Mapping[tuple[str, str], VerifyKey]:
        ((server_name, key_id),) = needed
        self.searches.append(server_name)
        if len(self.searches) > KEY_LOOKUPS_AT_ONCE:
            self.are_stuck.set()
        if server_name != FRIEND:
            await asyncio.Event().wait()
        return {(server_name, key_id): VerifyKey(self.key.verify_key, self.valid_until_ts)}


@pytest.fixture
def key() -> SigningKey:
    return generate_signing_key()


def header(key: SigningKey, origin: str, destination: str = US) -> str:
    return authorization_header(origin, key, destination, "GET", "/x")


async def test_who_is_known_does_not_wait_for_strangers(key: SigningKey) -> None:
    keys = Keys(key, 2_000_000)
    authenticator = RequestAuthenticator(US, keys.fetch, clock=lambda: NOW)
    assert await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None) == FRIEND
    strangers = [
        asyncio.create_task(
            authenticator.origin_of(header(key, f"stranger{number}.test"), "GET", "/x", None)
        )
        for number in range(2 * KEY_LOOKUPS_AT_ONCE)
    ]
    await keys.are_stuck.wait()

    async with asyncio.timeout(20):
        assert await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None) == FRIEND

    for task in strangers:
        task.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)


async def test_a_key_that_expires_is_looked_for_again(key: SigningKey) -> None:
    keys = Keys(key, int(NOW * 1000))
    now = NOW
    authenticator = RequestAuthenticator(US, keys.fetch, clock=lambda: now)
    await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None)
    now += 1
    with pytest.raises(RequestRefused):
        await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None)
    keys.valid_until_ts = 2_000_000
    assert await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None) == FRIEND
    assert keys.searches == [FRIEND] * 3


async def test_a_known_key_does_not_vouch_for_another_signature(key: SigningKey) -> None:
    keys = Keys(key, 2_000_000)
    authenticator = RequestAuthenticator(US, keys.fetch, clock=lambda: NOW)
    await authenticator.origin_of(header(key, FRIEND), "GET", "/x", None)
    for wrong, method in (
        (header(SigningKey(key.version, b"\1" * 32), FRIEND), "GET"),
        (header(key, FRIEND), "PUT"),
    ):
        with pytest.raises(RequestRefused) as refusal:
            await authenticator.origin_of(wrong, method, "/x", None)
        assert refusal.value.status == 401


async def test_no_key_is_looked_for_when_the_request_is_for_another_server(key: SigningKey) -> None:
    keys = Keys(key, 2_000_000)
    authenticator = RequestAuthenticator(US, keys.fetch, clock=lambda: NOW)
    with pytest.raises(RequestRefused):
        await authenticator.origin_of(header(key, FRIEND, "other.test"), "GET", "/x", None)
    assert keys.searches == []
