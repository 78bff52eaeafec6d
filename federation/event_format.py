"""Check 1 on receipt of a PDU: the event format of its room version.

Source: the sections "Event format" of the room version pages; client-server API, "Size limits".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.errors import InvalidEvent, InvalidIdentifier
from federation.events import MAX_AUTH_EVENTS, MAX_PREV_EVENTS
from federation.identifiers import MAX_IDENTIFIER_BYTES, check_server_name
from federation.room_versions import EventFormat, RoomVersion

MAX_FIELD_BYTES = 255
"""Limit on `type` and `state_key`, in bytes of UTF-8 (client-server API, "Size limits")."""

_MAX_INTEGER = 2**63 - 1
# A string of this many characters is within 255 bytes, whatever they are.
_SURELY_SHORT = 63


def check_format(pdu: Mapping[str, Any], version: RoomVersion, known_servers: set[str]) -> None:
    """Check that `pdu` has the fields of its room version, with the right types and sizes.

    Its total size, its room and what its integers and floats may be are checked elsewhere.

    Args:
        pdu: a JSON object.
        version: the rules of its room.
        known_servers: server names that are known to follow the grammar; it grows, so that each
            name is checked once for many events.

    Raises:
        InvalidEvent: it has not; the message names the field.
    """
    try:
        _check_fields(pdu, version, known_servers)
    except KeyError as error:
        raise InvalidEvent(f"{error.args[0]} is missing") from None
    except UnicodeEncodeError:
        raise InvalidEvent("a string holds a lone surrogate") from None


def _check_fields(pdu: Mapping[str, Any], version: RoomVersion, known_servers: set[str]) -> None:
    _check_text("type", pdu["type"])
    if "state_key" in pdu:
        _check_text("state_key", pdu["state_key"])
    _check_identifier("sender", pdu["sender"], "@", known_servers)
    if type(pdu["content"]) is not dict:
        raise InvalidEvent("content is not an object")
    _check_integer("depth", pdu["depth"], 0)
    _check_integer("origin_server_ts", pdu["origin_server_ts"], -_MAX_INTEGER)
    check_references = _check_reference_ids
    if version.event_format is EventFormat.V1:
        check_references = _check_reference_pairs
        _check_identifier("event_id", pdu["event_id"], "$", known_servers)
    elif "event_id" in pdu:
        # The field would be part of the hash that is the event's id; deployed servers refuse it.
        raise InvalidEvent("event_id is no field of this room version's events")
    check_references("auth_events", pdu["auth_events"], MAX_AUTH_EVENTS)
    check_references("prev_events", pdu["prev_events"], MAX_PREV_EVENTS)
    _check_hashes(pdu["hashes"])
    _check_signatures(pdu["signatures"])


def _check_text(field: str, value: Any) -> None:
    if type(value) is not str:
        raise InvalidEvent(f"{field} is not a string")
    if len(value) > _SURELY_SHORT and len(value.encode("utf-8")) > MAX_FIELD_BYTES:
        raise InvalidEvent(f"{field} is longer than {MAX_FIELD_BYTES} bytes")
    if "\0" in value:
        # Legal, but PostgreSQL cannot hold it, so no server that uses it has such an event.
        raise InvalidEvent(f"{field} holds a NUL")


def _check_identifier(field: str, value: Any, sigil: str, known_servers: set[str]) -> None:
    _check_text(field, value)
    localpart, colon, domain = value.partition(":")
    if localpart[:1] != sigil or not colon:
        raise InvalidEvent(f"{field} does not have the form {sigil}localpart:server")
    if domain not in known_servers:
        try:
            check_server_name(domain)
        except InvalidIdentifier as error:
            raise InvalidEvent(f"{field}: {error}") from None
        known_servers.add(domain)


def _check_integer(field: str, value: Any, minimum: int) -> None:
    if type(value) is not int:
        raise InvalidEvent(f"{field} is not an integer")
    if not minimum <= value <= _MAX_INTEGER:
        raise InvalidEvent(f"{field} is out of range")


def _check_reference_ids(field: str, references: Any, limit: int) -> None:
    if type(references) is not list:
        raise InvalidEvent(f"{field} is not a list")
    if len(references) > limit:
        raise InvalidEvent(f"{field} names {len(references)} events, {limit} are allowed")
    for event_id in references:
        if type(event_id) is not str or event_id[:1] != "$":
            raise InvalidEvent(f"{field} holds something that is not an event id")
        if "\0" in event_id:
            raise InvalidEvent(f"{field} holds an event id with a NUL")
        if len(event_id) > _SURELY_SHORT and len(event_id.encode("utf-8")) > MAX_IDENTIFIER_BYTES:
            raise InvalidEvent(f"{field} holds an event id that is too long")


def _check_reference_pairs(field: str, references: Any, limit: int) -> None:
    if type(references) is not list:
        raise InvalidEvent(f"{field} is not a list")
    for pair in references:
        if type(pair) is not list or len(pair) != 2 or type(pair[1]) is not dict:
            raise InvalidEvent(f"{field} holds something that is not a pair of event id and hashes")
    _check_reference_ids(field, [event_id for event_id, _ in references], limit)


def _check_hashes(hashes: Any) -> None:
    if type(hashes) is not dict:
        raise InvalidEvent("hashes is not an object")
    if type(hashes.get("sha256")) is not str:
        raise InvalidEvent("hashes.sha256 is missing or not a string")


def _check_signatures(signatures: Any) -> None:
    if type(signatures) is not dict:
        raise InvalidEvent("signatures is not an object")
    for server_name, of_server in signatures.items():
        if type(of_server) is not dict:
            raise InvalidEvent("signatures holds something that is not an object")
        for key_id, signature in of_server.items():
            if type(signature) is not str:
                raise InvalidEvent("signatures holds a signature that is not a string")
            # No hash covers them, so this is what keeps lone surrogates out of the database.
            if not (server_name.isascii() and key_id.isascii() and signature.isascii()):
                raise InvalidEvent("signatures holds a character that is not ASCII")
