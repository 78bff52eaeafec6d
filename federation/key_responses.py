"""The signed object in which a server publishes its keys.

Source: server-server API, "Publishing Keys" and "Querying Keys Through Another Server".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from federation.canonical_json import encode
from federation.errors import InvalidJson, InvalidKeyResponse, InvalidSignature
from federation.signing import decode_base64, verify_signed_json

SEVEN_DAYS_MS: Final = 7 * 24 * 3600 * 1000
"""A key is believed for no longer than this, whatever its server says, so that a stolen key that
was published with a long life can be revoked."""
MAX_KEYS: Final = 200
"""Keys that one server may publish, old ones included."""
_MAX_TIMESTAMP: Final = 2**53 - 1
_KEY_ID: Final = re.compile(r"ed25519:[A-Za-z0-9_]{1,100}")
_KEY_BYTES: Final = 32


class PublishedKey(NamedTuple):
    """One key of a server.

    Attributes:
        key_id: such as "ed25519:a_Bcde".
        verify_key: 32 bytes.
        valid_until_ts: the last moment, ms since the epoch, of which its signatures count.
        is_old: the server does not sign with it any more; `valid_until_ts` is when it stopped.
    """

    key_id: str
    verify_key: bytes
    valid_until_ts: int
    is_old: bool


class KeyResponse(NamedTuple):
    """The checked keys of a server.

    Attributes:
        server_name: whose keys they are.
        keys: current and old Ed25519 keys; entries that are malformed are left out.
        valid_until_ts: when the server wants to be asked again, ms since the epoch.
        key_json: the object as canonical JSON, signatures included.
    """

    server_name: str
    keys: list[PublishedKey]
    valid_until_ts: int
    key_json: bytes


def check_key_response(answer: Any, server_name: str, now_ms: int) -> KeyResponse:
    """The keys in a server's answer, which must be signed with at least one of them.

    Every signature of the server with a key that it lists as current must be right.

    Args:
        answer: the parsed object.
        server_name: whose keys were asked for.
        now_ms: the time, to bound the keys' validity.

    Raises:
        InvalidKeyResponse: it is malformed, about another server, or not signed by the server.
    """
    if not isinstance(answer, dict):
        raise InvalidKeyResponse("the key response is not an object")
    if answer.get("server_name") != server_name:
        raise InvalidKeyResponse(f"the key response is not about {server_name}")
    valid_until_ts = answer.get("valid_until_ts")
    if not _is_timestamp(valid_until_ts):
        raise InvalidKeyResponse("the key response has no valid `valid_until_ts`")
    current = _entries(answer, "verify_keys")
    old = _entries(answer, "old_verify_keys")
    if len(current) + len(old) > MAX_KEYS:
        raise InvalidKeyResponse(f"the key response lists more than {MAX_KEYS} keys")
    _check_self_signature(answer, server_name, current)
    believed_until = min(valid_until_ts, now_ms + SEVEN_DAYS_MS)
    keys = {
        key_id: PublishedKey(key_id, key, entry["expired_ts"], is_old=True)
        for key_id, (key, entry) in old.items()
        if _is_timestamp(entry.get("expired_ts"))
    }
    for key_id, (key, _) in current.items():
        keys[key_id] = PublishedKey(key_id, key, believed_until, is_old=False)
    try:
        return KeyResponse(server_name, list(keys.values()), valid_until_ts, encode(answer))
    except InvalidJson as error:
        raise InvalidKeyResponse(f"the key response: {error}") from None


def check_notary_signature(
    answer: Mapping[str, Any], notary: str, notary_keys: Mapping[str, bytes]
) -> None:
    """Check that a notary vouches for a key response with one of its keys, id to 32 bytes.

    Raises:
        InvalidKeyResponse: it does not.
    """
    reason = "it is not signed with a key that we know"
    for key_id, key in notary_keys.items():
        try:
            verify_signed_json(answer, notary, key, key_id)
        except InvalidSignature as error:
            reason = str(error)
        else:
            return
    raise InvalidKeyResponse(f"the notary {notary} does not vouch for the key response: {reason}")


def _entries(answer: Mapping[str, Any], field: str) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """The well-formed Ed25519 keys under `field`, with their entries."""
    entries = answer.get(field, {})
    if not isinstance(entries, dict):
        raise InvalidKeyResponse(f"`{field}` of the key response is not an object")
    found = {}
    for key_id, entry in entries.items():
        if _KEY_ID.fullmatch(key_id) and isinstance(entry, dict):
            text = entry.get("key")
            try:
                key = decode_base64(text) if isinstance(text, str) else b""
            except ValueError:
                continue
            if len(key) == _KEY_BYTES:
                found[key_id] = key, entry
    return found


def _check_self_signature(
    answer: Mapping[str, Any],
    server_name: str,
    current: Mapping[str, tuple[bytes, dict[str, Any]]],
) -> None:
    signatures = answer.get("signatures")
    own = signatures.get(server_name) if isinstance(signatures, dict) else None
    signed_with = [key_id for key_id in current if isinstance(own, dict) and key_id in own]
    if not signed_with:
        raise InvalidKeyResponse(f"the key response is not signed by {server_name} itself")
    for key_id in signed_with:
        try:
            verify_signed_json(answer, server_name, current[key_id][0], key_id)
        except InvalidSignature as error:
            raise InvalidKeyResponse(f"the key response: {error}") from None


def _is_timestamp(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_TIMESTAMP
