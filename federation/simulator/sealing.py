"""Hashing and signing of a PDU in one pass.

A room of 50,000 members is 50,000 PDUs to seal, so the essential part is encoded once and serves
both the signature and the event id, and the JSON to send is made once and kept as bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from federation.canonical_json import encode, encode_floatless
from federation.hashing import essential_part, event_id_of_hash, hashed_content
from federation.room_versions import EventFormat, RoomVersion
from federation.signing import encode_base64
from federation.simulator.identity import ServerIdentity


class Sealed(NamedTuple):
    """A PDU that is ready to be sent.

    Attributes:
        event_id: with its `$`.
        json: the whole PDU as canonical JSON.
        reference_hash: unpadded Base64, as versions 1 and 2 put it beside a reference.
    """

    event_id: str
    json: bytes
    reference_hash: str


def seal(pdu: dict[str, Any], version: RoomVersion, signers: Iterable[ServerIdentity]) -> Sealed:
    """Add the content hash and the signatures of `signers` to `pdu`, in place.

    `pdu` holds no floats. Source: server-server API, "Signing events" and "Calculating the
    reference hash for an event".
    """
    digest = hashlib.sha256(encode_floatless(hashed_content(pdu))).digest()
    pdu["hashes"] = {"sha256": encode_base64(digest)}
    essential = encode_floatless(essential_part(pdu, version))
    pdu["signatures"] = {
        signer.server_name: {signer.key_id: signer.sign(essential)} for signer in signers
    }
    return _sealed(pdu, version, essential, encode_floatless(pdu))


def reseal(
    pdu: dict[str, Any], version: RoomVersion, countersigner: ServerIdentity | None = None
) -> Sealed:
    """A PDU that another server has hashed and signed, with one more signature if one is wanted.

    Raises:
        InvalidJson: it has no canonical JSON.
    """
    essential = encode(essential_part(pdu, version))
    if countersigner is not None:
        signature = {countersigner.key_id: countersigner.sign(essential)}
        signatures = {**pdu.get("signatures", {}), countersigner.server_name: signature}
        pdu = {**pdu, "signatures": signatures}
    return _sealed(pdu, version, essential, encode(pdu))


def _sealed(pdu: dict[str, Any], version: RoomVersion, essential: bytes, json: bytes) -> Sealed:
    digest = hashlib.sha256(essential).digest()
    if version.event_format is EventFormat.V1:
        event_id: str = pdu["event_id"]
    else:
        event_id = event_id_of_hash(digest, version)
    return Sealed(event_id, json, encode_base64(digest))
