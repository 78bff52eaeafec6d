"""Rule 5.4.1 (version 12's number): invites that redeem a third-party invite."""

from __future__ import annotations

from typing import Any

import pytest

from federation.signing import SigningKey, sign_json
from tests.unit.resync.auth.room import ALICE, BOB, CREATOR, Room, member_rule, versions

ALL = versions(1)
KEY = SigningKey("1", bytes(range(32)))
OTHER_KEY = SigningKey("1", bytes(32))
SIGNED = {"mxid": BOB, "token": "token"}


def room_with_invite(room_version: str, **content: Any) -> Room:
    room = Room(room_version)
    room.member(ALICE, "join")
    content = content or {"public_key": KEY.verify_key_base64}
    room.put(room.event(ALICE, "m.room.third_party_invite", content, "token"))
    return room


def verdict(room: Room, signed: Any, *, sender: str = ALICE, target: str = BOB) -> str:
    return room.verdict_on_member(sender, target, "invite", third_party_invite={"signed": signed})


def signed_by(*keys: SigningKey, **content: Any) -> dict[str, Any]:
    signed: dict[str, Any] = {**SIGNED, **content}
    for number, key in enumerate(keys):
        signed = sign_json(signed, f"identity{number}.example", key)
    return signed


@pytest.mark.parametrize("room_version", ALL)
def test_a_signed_invite_is_allowed_whatever_the_sender_may_do(room_version: str) -> None:
    room = room_with_invite(room_version)
    room.power_levels({ALICE: -5}, invite=100)
    room.member(ALICE, "leave")
    assert verdict(room, signed_by(KEY)) == ""


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_1_the_target_is_banned(room_version: str) -> None:
    room = room_with_invite(room_version)
    room.member(BOB, "ban")
    assert verdict(room, signed_by(KEY)) == member_rule(room_version, "4.1.1")


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("invite", [None, 1, "x", [], {}, {"signed": None}, {"signed": []}])
def test_5_4_1_2_nothing_signed(room_version: str, invite: Any) -> None:
    room = room_with_invite(room_version)
    found = room.verdict_on_member(ALICE, BOB, "invite", third_party_invite=invite)
    assert found == member_rule(room_version, "4.1.2")


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize(
    "signed", [{}, {"mxid": BOB}, {"token": "token"}, {"mxid": BOB, "token": ["token"]}]
)
def test_5_4_1_3_no_mxid_or_no_token(room_version: str, signed: dict[str, Any]) -> None:
    room = room_with_invite(room_version)
    assert verdict(room, signed) == member_rule(room_version, "4.1.3")


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_4_the_invite_is_for_another(room_version: str) -> None:
    room = room_with_invite(room_version)
    assert verdict(room, signed_by(KEY, mxid=CREATOR)) == member_rule(room_version, "4.1.4")
    assert verdict(room, signed_by(KEY, mxid=None)) == member_rule(room_version, "4.1.4")


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_5_no_such_invite(room_version: str) -> None:
    room = room_with_invite(room_version)
    assert verdict(room, signed_by(KEY, token="other")) == member_rule(room_version, "4.1.5")


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_6_the_sender_is_another(room_version: str) -> None:
    room = room_with_invite(room_version)
    assert verdict(room, signed_by(KEY), sender=CREATOR) == member_rule(room_version, "4.1.6")


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_7_any_signature_with_any_key(room_version: str) -> None:
    key = KEY.verify_key_base64
    other = OTHER_KEY.verify_key_base64
    for content in (
        {"public_key": key},
        {"public_keys": [{"public_key": other}, {"public_key": key}]},
        {"public_key": other, "public_keys": [{"public_key": key, "key_validity_url": "x"}]},
        {"public_key": "!", "public_keys": [None, {}, {"public_key": 1}, {"public_key": key}]},
        {"public_key": key, "public_keys": "x"},
    ):
        room = room_with_invite(room_version, **content)
        assert verdict(room, signed_by(KEY)) == ""
        assert verdict(room, signed_by(SigningKey("1", b"x" * 32), KEY)) == ""


@pytest.mark.parametrize("room_version", ALL)
def test_5_4_1_8_no_valid_signature(room_version: str) -> None:
    room = room_with_invite(room_version)
    rejected = member_rule(room_version, "4.1.8")
    assert verdict(room, SIGNED) == rejected
    assert verdict(room, signed_by(OTHER_KEY)) == rejected
    # What is signed has been changed, and signatures that are none.
    assert verdict(room, {**signed_by(KEY), "extra": 1}) == rejected
    for signatures in (None, [], "x", {"a": None}, {"a": {"ed25519:1": 5}}, {"a": {"rsa:1": "x"}}):
        assert verdict(room, {**SIGNED, "signatures": signatures}) == rejected
    # The signature is fine and its algorithm is not.
    signature = signed_by(KEY)["signatures"]["identity0.example"]["ed25519:1"]
    assert verdict(room, {**SIGNED, "signatures": {"a": {"rsa:1": signature}}}) == rejected


def test_a_thousand_signatures_and_keys_are_not_all_tried() -> None:
    keys = [{"public_key": OTHER_KEY.verify_key_base64}] * 300
    room = room_with_invite("10", public_keys=[*keys, {"public_key": KEY.verify_key_base64}])
    assert verdict(room, signed_by(KEY)) == "4.4.1.8"
