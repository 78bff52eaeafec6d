"""Rule 5.4.1 (version 12's number): an invite that redeems `m.room.third_party_invite`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from federation.errors import InvalidSignature
from federation.events import Event
from federation.signing import decode_base64, verify_signed_json
from resync.auth.auth_state import AuthState
from resync.auth.errors import rejected_by
from resync.auth.rule_numbers import Rule

MAX_VERIFICATIONS = 100
"""Pairs of signature and public key that are tried for one invite.

One event can hold hundreds of either; an honest one holds a handful.
"""


def check_third_party_invite(
    event: Event,
    target: str,
    target_is_banned: bool,
    auth_state: AuthState,
) -> None:
    """Rule 5.4.1: `content` of an invite has a `third_party_invite` property.

    Raises:
        NotAuthorised: a part of rule 5.4.1 rejects it.
    """
    version = event.room_version
    # 5.4.1.1 If target user is banned, reject.
    if target_is_banned:
        raise rejected_by(Rule.INVITE_THIRD_PARTY_BANNED, version, f"{target} is banned")
    # 5.4.1.2 If content.third_party_invite does not have a signed property, reject.
    invite = event.content["third_party_invite"]
    signed = invite.get("signed") if type(invite) is dict else None
    if type(signed) is not dict:
        raise rejected_by(
            Rule.INVITE_THIRD_PARTY_SIGNED, version, "the third-party invite is not signed"
        )
    # 5.4.1.3 If signed does not have mxid and token properties, reject.
    token = signed.get("token")
    if "mxid" not in signed or type(token) is not str:
        raise rejected_by(
            Rule.INVITE_THIRD_PARTY_PROPERTIES,
            version,
            "the third-party invite has no mxid or no token",
        )
    # 5.4.1.4 If mxid does not match state_key, reject.
    if signed["mxid"] != target:
        raise rejected_by(
            Rule.INVITE_THIRD_PARTY_MXID, version, f"the third-party invite is not for {target}"
        )
    # 5.4.1.5 If there is no m.room.third_party_invite event in the current room state with
    #         state_key matching token, reject.
    redeemed = auth_state.get(("m.room.third_party_invite", token))
    if redeemed is None:
        raise rejected_by(
            Rule.INVITE_THIRD_PARTY_TOKEN, version, "the room has no such third-party invite"
        )
    # 5.4.1.6 If sender does not match sender of the m.room.third_party_invite, reject.
    if event.sender != redeemed.sender:
        raise rejected_by(
            Rule.INVITE_THIRD_PARTY_SENDER,
            version,
            f"{event.sender} did not send the third-party invite",
        )
    # 5.4.1.7 If any signature in signed matches any public key in the m.room.third_party_invite
    #         event, allow.
    for server_name, key_id, public_key in islice(
        _pairs_to_try(signed, redeemed.content), MAX_VERIFICATIONS
    ):
        try:
            verify_signed_json(signed, server_name, public_key, key_id)
        except InvalidSignature:
            continue
        return
    # 5.4.1.8 Otherwise, reject.
    raise rejected_by(
        Rule.INVITE_THIRD_PARTY_OTHERWISE, version, "no valid signature on the third-party invite"
    )


def _pairs_to_try(
    signed: Mapping[str, Any], content: Mapping[str, Any]
) -> Iterator[tuple[str, str, bytes]]:
    """Each Ed25519 signature with each public key: (server name, key id, public key)."""
    signatures = signed.get("signatures")
    if type(signatures) is not dict:
        return
    for public_key in _public_keys(content):
        for server_name, of_server in signatures.items():
            if type(of_server) is dict:
                for key_id in of_server:
                    if key_id.startswith("ed25519:"):
                        yield server_name, key_id, public_key


def _public_keys(content: Mapping[str, Any]) -> Iterator[bytes]:
    """The keys in `public_key` (5.4.1.7.1) and in `public_keys` (5.4.1.7.2)."""
    found = [content.get("public_key")]
    listed = content.get("public_keys")
    if type(listed) is list:
        found.extend(item.get("public_key") for item in listed if type(item) is dict)
    for public_key in found:
        if type(public_key) is str:
            try:
                yield decode_base64(public_key)
            except ValueError:
                continue
