"""Checks 1 to 3 on receipt of a PDU: format, signatures, content hash.

Pure, and made to run over many events at a time in another process: everything that goes in and
comes out can be pickled. Source: server-server API, "Checks performed on receipt of a PDU" and
"Validating hashes and signatures on received events"; client-server API, "Size limits".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from federation.canonical_json import (
    check_strict,
    encode,
    encode_floatless,
    encode_strict,
    parse_noting_floats,
)
from federation.errors import (
    FederationError,
    InvalidEvent,
    InvalidIdentifier,
    InvalidSignature,
    UncheckableSignature,
)
from federation.event_format import check_format
from federation.hashing import compute_event_id, essential_part, event_id_of_hash, hashed_content
from federation.identifiers import check_server_name, shown
from federation.room_versions import EventFormat, RoomVersion, get_room_version
from federation.signing import (
    ALGORITHM,
    decode_base64,
    encode_base64,
    is_valid_signature,
    required_signers_of,
)

MAX_PDU_BYTES = 65_536
"""Largest PDU as canonical JSON. `unsigned` is not counted: it is not part of what was signed,
servers on the way may add to it, and deployed servers drop most of it on receipt."""
MAX_JSON_TEXT = 2**20
"""Longest JSON text of one PDU that is parsed at all, in characters."""
MAX_KEYS_PER_SIGNER = 10
"""Keys that are looked up for one server's signatures on one event."""

# No character of JSON text becomes more than six bytes of canonical JSON.
_TEXT_SURELY_WITHIN_LIMIT = MAX_PDU_BYTES // 6
_KEY_ID_PREFIX = ALGORITHM + ":"


class Outcome(Enum):
    """What becomes of a PDU after checks 1 to 3."""

    ACCEPTED = "accepted"
    """All three checks passed."""
    REDACTED = "redacted"
    """Signed, but its content hash differs: use `federation.redaction.redact` of it."""
    DROPPED = "dropped"
    """Not an event of this room, malformed, or not signed: do not use it."""
    UNCHECKABLE = "uncheckable"
    """The key of its signature could not be had: do not use it for now."""


class PduCheck(NamedTuple):
    """The result for one PDU.

    Attributes:
        outcome: see `Outcome`.
        event_id: the event's id. Of a dropped PDU it is what it would be or claims to be, and
            None where it has none.
        reason: why the outcome is not accepted; "" when it is.
    """

    outcome: Outcome
    event_id: str | None
    reason: str


class VerifyKey(NamedTuple):
    """A server's public key.

    Attributes:
        key: 32 bytes, Ed25519.
        valid_until_ts: the last moment, in ms since the epoch, of which its signatures count.
            Room versions from 5 on compare it with the event's `origin_server_ts`.
    """

    key: bytes
    valid_until_ts: int


def check_pdus(
    json_texts: Sequence[str],
    room_version: str,
    room_id: str,
    keys: Mapping[tuple[str, str], VerifyKey],
) -> list[PduCheck]:
    """Check PDUs that another server sent as events of one room.

    Args:
        json_texts: one PDU each, as received. They may hold anything.
        room_version: identifier of the room's version.
        room_id: the room that the events must belong to.
        keys: the known keys, by server name and key id; see `keys_needed`.

    Returns:
        One result per text, in the same order.

    Raises:
        UnknownRoomVersion: see `get_room_version`. No input in `json_texts` makes this raise.
    """
    checker = _Checker(get_room_version(room_version), room_id, keys)
    return [checker.check(json_text) for json_text in json_texts]


def keys_needed(
    pdus: Iterable[Mapping[str, Any]], version: RoomVersion
) -> dict[tuple[str, str], int]:
    """The keys that `check_pdus` needs for these PDUs.

    Returns:
        Server name and key id, to the earliest time (ms) until which the key must be valid: the
        latest `origin_server_ts` it signed, or 0 where the room version does not ask. PDUs that
        will be dropped for their format may be left out.
    """
    needed: dict[tuple[str, str], int] = {}
    for pdu in pdus:
        try:
            signers = required_signers_of(pdu, version)
            valid_until = int(pdu["origin_server_ts"]) if version.enforces_key_validity else 0
            signatures = pdu["signatures"]
            for server_name in signers:
                key_ids = [key for key in signatures[server_name] if key.startswith(_KEY_ID_PREFIX)]
                for key_id in key_ids[:MAX_KEYS_PER_SIGNER]:
                    pair = server_name, key_id
                    if pair not in needed:
                        check_server_name(server_name)
                    needed[pair] = max(valid_until, needed.get(pair, 0))
        except (InvalidIdentifier, LookupError, TypeError, ValueError, AttributeError):
            # Malformed: `check_pdus` drops it and says why.
            continue
    return needed


class _Checker:
    """What the checks of one batch share."""

    def __init__(
        self, version: RoomVersion, room_id: str, keys: Mapping[tuple[str, str], VerifyKey]
    ) -> None:
        self._version = version
        self._room_id = room_id
        self._keys = keys
        self._known_servers: set[str] = set()
        """Server names whose grammar has been checked."""

    def check(self, json_text: str) -> PduCheck:
        """The result for one PDU."""
        pdu: dict[str, Any] | None = None
        try:
            pdu, encode_part = self._parse(json_text)
            check_format(pdu, self._version, self._known_servers)
            # The reference hash and the signatures cover the same bytes.
            essential = encode_part(essential_part(pdu, self._version))
            event_id = self._event_id(pdu, essential)
            self._check_room(pdu, event_id)
            content_hash = hashlib.sha256(encode_part(hashed_content(pdu))).digest()
            if len(json_text) > _TEXT_SURELY_WITHIN_LIMIT:
                _check_size(pdu)
            self._check_signatures(pdu, essential)
            if not _is_content_hash(pdu["hashes"]["sha256"], content_hash):
                return PduCheck(
                    Outcome.REDACTED, event_id, "the content hash does not match the content"
                )
        except UncheckableSignature as error:
            return PduCheck(Outcome.UNCHECKABLE, event_id, str(error))
        except FederationError as error:
            return PduCheck(Outcome.DROPPED, self._claimed_event_id(pdu), str(error))
        except Exception as error:
            # Nothing is known to get here. If something does, one event is lost and not the batch.
            reason = f"cannot be checked: {type(error).__name__}: {shown(str(error))}"
            return PduCheck(Outcome.DROPPED, self._claimed_event_id(pdu), reason)
        return PduCheck(Outcome.ACCEPTED, event_id, "")

    def _parse(self, json_text: str) -> tuple[dict[str, Any], Callable[[Any], bytes]]:
        """The PDU, and what encodes its parts as the room version asks."""
        if len(json_text) > MAX_JSON_TEXT:
            raise InvalidEvent(f"the event is longer than {MAX_JSON_TEXT} characters")
        pdu, has_floats = parse_noting_floats(json_text)
        if type(pdu) is not dict:
            raise InvalidEvent("the event is not a JSON object")
        if self._version.strict_canonical_json:
            if has_floats:
                check_strict(_without_unsigned(pdu))
            return pdu, encode_strict
        return pdu, encode if has_floats else encode_floatless

    def _event_id(self, pdu: Mapping[str, Any], essential: bytes) -> str:
        if self._version.event_format is EventFormat.V1:
            event_id: str = pdu["event_id"]
            return event_id
        return event_id_of_hash(hashlib.sha256(essential).digest(), self._version)

    def _claimed_event_id(self, pdu: dict[str, Any] | None) -> str | None:
        try:
            return None if pdu is None else compute_event_id(pdu, self._version)
        except InvalidEvent:
            return None

    def _check_room(self, pdu: Mapping[str, Any], event_id: str) -> None:
        if (
            self._version.room_id_is_create_hash
            and pdu["type"] == "m.room.create"
            and pdu.get("state_key") == ""
        ):
            room_id = "!" + event_id[1:]
        else:
            room_id = pdu.get("room_id", "")
            if type(room_id) is not str or not room_id:
                raise InvalidEvent("room_id is missing or not a string")
        if room_id != self._room_id:
            raise InvalidEvent(f"the event belongs to another room, {shown(room_id)}")

    def _check_signatures(self, pdu: Mapping[str, Any], essential: bytes) -> None:
        """Check 2: every required server's signatures with known, valid keys verify, at least one.

        Signatures with unknown or expired keys are passed over.
        """
        signatures = pdu["signatures"]
        for server_name in required_signers_of(pdu, self._version):
            of_server = signatures.get(server_name)
            if not of_server:
                raise InvalidSignature(f"not signed by {shown(server_name)}")
            if not any(key_id.startswith(_KEY_ID_PREFIX) for key_id in of_server):
                raise InvalidSignature(f"not signed by {shown(server_name)} with {ALGORITHM}")
            verified = False
            for key_id, signature in of_server.items():
                key = self._valid_key(server_name, key_id, pdu["origin_server_ts"])
                if key is None:
                    continue
                if not is_valid_signature(essential, signature, key.key):
                    raise InvalidSignature(
                        f"wrong signature of {server_name} with key {shown(key_id)}"
                    )
                verified = True
            if not verified:
                raise UncheckableSignature(self._no_key(server_name, of_server))

    def _valid_key(self, server_name: str, key_id: str, timestamp: int) -> VerifyKey | None:
        key = self._keys.get((server_name, key_id))
        if key is None or not key_id.startswith(_KEY_ID_PREFIX):
            return None
        if self._version.enforces_key_validity and key.valid_until_ts < timestamp:
            return None
        return key

    def _no_key(self, server_name: str, key_ids: Iterable[str]) -> str:
        """Why none of a server's signatures could be checked."""
        tried = list(islice(key_ids, MAX_KEYS_PER_SIGNER))
        expired = [key_id for key_id in tried if (server_name, key_id) in self._keys]
        listed = ", ".join(shown(key_id) for key_id in expired or tried)
        if expired:
            return f"signed by {server_name} when its key was no longer valid: {listed}"
        return f"signed by {server_name} with a key that could not be had: {listed}"


def _without_unsigned(pdu: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pdu.items() if key != "unsigned"}


def _check_size(pdu: Mapping[str, Any]) -> None:
    size = len(encode(_without_unsigned(pdu)))
    if size > MAX_PDU_BYTES:
        raise InvalidEvent(f"the event has {size} bytes, {MAX_PDU_BYTES} are allowed")


def _is_content_hash(claimed: str, digest: bytes) -> bool:
    """Check 3: whether the Base64 text `claimed` holds `digest`."""
    if claimed == encode_base64(digest):
        return True
    try:
        return decode_base64(claimed) == digest
    except ValueError:
        raise InvalidEvent("hashes.sha256 is not Base64") from None
