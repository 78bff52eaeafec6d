"""Content hashes, reference hashes and event ids.

Source: server-server API, "Calculating the content hash for an event" and "Calculating the
reference hash for an event"; room versions 3 and 4, "Event IDs".
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from federation.canonical_json import encode
from federation.errors import InvalidEvent, InvalidJson
from federation.redaction import redact
from federation.room_versions import EventFormat, RoomVersion

_NOT_IN_CONTENT_HASH = frozenset({"unsigned", "signatures", "hashes"})


def hashed_content(pdu: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a PDU that its content hash covers."""
    return {key: value for key, value in pdu.items() if key not in _NOT_IN_CONTENT_HASH}


def essential_part(pdu: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
    """The part of a PDU that its reference hash covers. Its signatures cover exactly the same."""
    redacted = redact(pdu, version)
    redacted.pop("signatures", None)
    # No redaction rules keep `unsigned`, which is the other key to be left out.
    return redacted


def content_hash(pdu: Mapping[str, Any]) -> bytes:
    """The SHA-256 content hash of a PDU, 32 bytes.

    Raises:
        InvalidEvent: the PDU has no canonical JSON.
    """
    return hashlib.sha256(_encode(hashed_content(pdu))).digest()


def reference_hash(pdu: Mapping[str, Any], version: RoomVersion) -> bytes:
    """The SHA-256 reference hash of a PDU, 32 bytes.

    Raises:
        InvalidEvent: the PDU has no canonical JSON.
    """
    return hashlib.sha256(_encode(essential_part(pdu, version))).digest()


def compute_event_id(pdu: Mapping[str, Any], version: RoomVersion) -> str:
    """The id of the event that `pdu` describes: read from it in versions 1 and 2, then computed.

    Raises:
        InvalidEvent: the PDU has no canonical JSON, or (versions 1 and 2) no `event_id`.
    """
    if version.event_format is EventFormat.V1:
        event_id = pdu.get("event_id")
        if type(event_id) is not str:
            raise InvalidEvent("event_id is missing or not a string")
        return event_id
    return event_id_of_hash(reference_hash(pdu, version), version)


def event_id_of_hash(digest: bytes, version: RoomVersion) -> str:
    """The event id made of a reference hash. Room versions from 3 on."""
    if version.event_format is EventFormat.V3:
        encoded = base64.b64encode(digest)
    else:
        encoded = base64.urlsafe_b64encode(digest)
    return "$" + encoded.decode("ascii").rstrip("=")


def _encode(value: dict[str, Any]) -> bytes:
    try:
        return encode(value)
    except InvalidJson as error:
        raise InvalidEvent(str(error)) from None
