"""Published keys: what is believed of them and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from federation.errors import InvalidKeyResponse
from federation.key_responses import SEVEN_DAYS_MS, check_key_response, check_notary_signature
from federation.server import OldVerifyKey, key_response
from federation.signing import generate_signing_key, sign_json

KEY = generate_signing_key()
OTHER = generate_signing_key()
NOW = 1_700_000_000_000


def published(**changes: Any) -> dict[str, Any]:
    """A server's answer, signed after `changes`."""
    answer = key_response("far.test", [KEY], {"ed25519:old": OldVerifyKey(b"o" * 32, 5)}, NOW)
    del answer["signatures"]
    return sign_json({**answer, **changes}, "far.test", KEY)


def entry(key: str = OTHER.verify_key_base64, **more: Any) -> dict[str, Any]:
    return {"key": key, **more}


def test_current_and_old_keys() -> None:
    answer = published(valid_until_ts=NOW + 1000)
    response = check_key_response(answer, "far.test", NOW)
    assert {key.key_id: key[1:] for key in response.keys} == {
        KEY.key_id: (KEY.verify_key, NOW + 1000, False),
        "ed25519:old": (b"o" * 32, 5, True),
    }
    assert json.loads(response.key_json) == answer


def test_keys_are_believed_for_seven_days_at_most() -> None:
    response = check_key_response(published(valid_until_ts=2**53 - 1), "far.test", NOW)
    current = [key for key in response.keys if not key.is_old]
    assert [key.valid_until_ts for key in current] == [NOW + SEVEN_DAYS_MS]


def test_keys_that_have_run_out_keep_their_end() -> None:
    response = check_key_response(published(valid_until_ts=NOW - 5), "far.test", NOW)
    assert response.keys[-1].valid_until_ts == NOW - 5


@pytest.mark.parametrize(
    "entries",
    [
        {"rsa:1": entry()},
        {"ed25519:bad-id": entry()},
        {"ed25519:": entry()},
        {"ed25519:" + "x" * 200: entry()},
        {"ed25519:1": entry(key="AAAA")},
        {"ed25519:1": entry(key="not base64!")},
        {"ed25519:1": {"key": 5}},
        {"ed25519:1": {}},
        {"ed25519:1": "key"},
    ],
)
def test_malformed_keys_are_left_out(entries: dict[str, Any]) -> None:
    answer = published(verify_keys={KEY.key_id: entry(KEY.verify_key_base64), **entries})
    ids = {key.key_id for key in check_key_response(answer, "far.test", NOW).keys}
    assert ids == {KEY.key_id, "ed25519:old"}


@pytest.mark.parametrize("expired", [None, "5", -1, 1.5, 2**53, True])
def test_old_keys_without_an_end_are_left_out(expired: Any) -> None:
    answer = published(old_verify_keys={"ed25519:2": entry(expired_ts=expired)})
    assert {key.key_id for key in check_key_response(answer, "far.test", NOW).keys} == {KEY.key_id}


def test_a_key_that_is_both_current_and_old_is_current() -> None:
    answer = published(old_verify_keys={KEY.key_id: entry(KEY.verify_key_base64, expired_ts=1)})
    [key] = check_key_response(answer, "far.test", NOW).keys
    assert not key.is_old


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "not an object"),
        ([], "not an object"),
        ({}, "not about far.test"),
        (published(server_name="other.test"), "not about far.test"),
        (published(valid_until_ts="soon"), "valid_until_ts"),
        (published(valid_until_ts=-1), "valid_until_ts"),
        (published(valid_until_ts=2.5), "valid_until_ts"),
        (published(verify_keys=[]), "`verify_keys` .* not an object"),
        (published(old_verify_keys=[]), "`old_verify_keys` .* not an object"),
        (published(verify_keys={}), "not signed by far.test itself"),
        ({**published(), "signatures": {}}, "not signed by far.test itself"),
        ({**published(), "signatures": []}, "not signed by far.test itself"),
        ({**published(), "valid_until_ts": NOW + 1}, "wrong signature of far.test"),
        (
            published(verify_keys={KEY.key_id: entry(OTHER.verify_key_base64)}),
            "wrong signature of far.test",
        ),
        (
            published(old_verify_keys={f"ed25519:{n}": entry(expired_ts=1) for n in range(300)}),
            "more than 200 keys",
        ),
    ],
)
def test_responses_that_are_not_believed(answer: Any, reason: str) -> None:
    with pytest.raises(InvalidKeyResponse, match=reason):
        check_key_response(answer, "far.test", NOW)


def test_an_old_key_cannot_vouch_for_new_ones() -> None:
    answer = published(
        verify_keys={"ed25519:new": entry()},
        old_verify_keys={KEY.key_id: entry(KEY.verify_key_base64, expired_ts=1)},
    )
    with pytest.raises(InvalidKeyResponse, match=r"not signed by far\.test itself"):
        check_key_response(answer, "far.test", NOW)


def test_every_signature_with_a_current_key_must_be_right() -> None:
    answer = published(
        verify_keys={
            KEY.key_id: entry(KEY.verify_key_base64),
            OTHER.key_id: entry(OTHER.verify_key_base64),
        }
    )
    check_key_response(answer, "far.test", NOW)
    answer["signatures"]["far.test"][OTHER.key_id] = "A" * 86
    with pytest.raises(InvalidKeyResponse, match="wrong signature"):
        check_key_response(answer, "far.test", NOW)


def test_a_notary_vouches_with_one_of_its_keys() -> None:
    notary = generate_signing_key()
    answer = sign_json(published(), "notary.test", notary)
    keys = {"ed25519:unused": b"x" * 32, notary.key_id: notary.verify_key}
    check_notary_signature(answer, "notary.test", keys)
    for wrong in ({}, {notary.key_id: b"x" * 32}, {"ed25519:unused": notary.verify_key}):
        with pytest.raises(InvalidKeyResponse, match=r"notary\.test does not vouch"):
            check_notary_signature(answer, "notary.test", wrong)
    with pytest.raises(InvalidKeyResponse, match=r"other\.test does not vouch"):
        check_notary_signature(answer, "other.test", keys)
