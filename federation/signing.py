"""Signing keys, and the signatures on JSON objects and events.

Source: specification appendices, "Signing JSON"; server-server API, "Signing Events".
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nacl.signing
import signedjson.key
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from federation.canonical_json import encode
from federation.errors import InvalidEvent, InvalidJson, InvalidSignature, InvalidSigningKey
from federation.hashing import content_hash, essential_part
from federation.identifiers import domain_of
from federation.room_versions import EventFormat, RoomVersion

if TYPE_CHECKING:
    from federation.events import Event

ALGORITHM = "ed25519"
"""The one signing algorithm there is."""
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 signing key of a homeserver.

    Attributes:
        version: what follows `ed25519:` in the key's id.
        seed: the 32 secret bytes; not shown by `repr`.
    """

    version: str
    seed: bytes = field(repr=False)
    _expanded: nacl.signing.SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Deriving the key pair from the seed costs as much as a signature: once is enough.
        object.__setattr__(self, "_expanded", nacl.signing.SigningKey(self.seed))

    @property
    def alg(self) -> str:
        """The algorithm, always "ed25519"."""
        return ALGORITHM

    @property
    def key_id(self) -> str:
        """The signing key identifier, such as "ed25519:a_Bcde"."""
        return f"{ALGORITHM}:{self.version}"

    @property
    def verify_key(self) -> bytes:
        """The 32 public bytes."""
        return bytes(self._expanded.verify_key)

    @property
    def verify_key_base64(self) -> str:
        """The public key as it is published, unpadded Base64."""
        return encode_base64(self.verify_key)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message`."""
        return self._expanded.sign(message).signature


def generate_signing_key() -> SigningKey:
    """A new random signing key with a random version."""
    key = signedjson.key.generate_signing_key("a_" + secrets.token_hex(2))
    return SigningKey(version=key.version, seed=bytes(key))


def load_signing_key(path: str | os.PathLike[str]) -> SigningKey:
    """The signing key in a file of signedjson's format: `ed25519 VERSION BASE64`.

    Raises:
        InvalidSigningKey: the file cannot be read or holds no usable key.
    """
    try:
        with Path(path).open(encoding="ascii") as file:
            keys = signedjson.key.read_signing_keys(line for line in file if line.strip())
    except OSError as error:
        raise InvalidSigningKey(
            f"signing key file {path} cannot be read: {error.strerror}"
        ) from None
    except Exception:
        # The library's own message could quote the secret.
        raise InvalidSigningKey(
            f"signing key file {path} is malformed: expected a line 'ed25519 VERSION BASE64'"
        ) from None
    if not keys:
        raise InvalidSigningKey(f"signing key file {path} is empty")
    return SigningKey(version=keys[0].version, seed=bytes(keys[0]))


def write_signing_key(path: str | os.PathLike[str], key: SigningKey) -> None:
    """Write `key` to a new file that only its owner can read, in signedjson's format.

    Raises:
        InvalidSigningKey: the file exists already, or cannot be written.
    """
    signedjson_key = signedjson.key.decode_signing_key_base64(
        ALGORITHM, key.version, encode_base64(key.seed)
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidSigningKey(
            f"signing key file {path} exists already: it is the server's identity, "
            "remove it yourself if it is to be replaced"
        ) from None
    except OSError as error:
        raise InvalidSigningKey(
            f"signing key file {path} cannot be written: {error.strerror}"
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        signedjson.key.write_signing_keys(file, [signedjson_key])


def random_localpart() -> str:
    """A random opaque id for an event of room versions 1 and 2: `$` + this + `:` + our name."""
    return secrets.token_hex(12)


def encode_base64(data: bytes) -> str:
    """`data` as unpadded Base64 in the standard alphabet."""
    return base64.b64encode(data).decode("ascii").rstrip("=")


def decode_base64(text: str) -> bytes:
    """The bytes that Base64 text holds: either alphabet, padded or not.

    Raises:
        ValueError: it is no Base64.
    """
    if "-" in text or "_" in text:
        text = text.replace("-", "+").replace("_", "/")
    return binascii.a2b_base64(text + "=" * (-len(text) % 4))


def sign_json(json_object: Mapping[str, Any], server_name: str, key: SigningKey) -> dict[str, Any]:
    """A copy of `json_object` with the signature of `server_name` added to those it has.

    Raises:
        InvalidJson: the object has no canonical JSON.
    """
    signature = key.sign(encode(_signed_part(json_object)))
    return _with_signature(json_object, server_name, key, signature)


def sign_event(
    pdu: Mapping[str, Any], version: RoomVersion, server_name: str, key: SigningKey
) -> dict[str, Any]:
    """A copy of `pdu` with its content hash and the signature of `server_name` added.

    Raises:
        InvalidEvent: the PDU has no canonical JSON.
    """
    hashed = {**pdu, "hashes": {"sha256": encode_base64(content_hash(pdu))}}
    return add_signature(hashed, version, server_name, key)


def add_signature(
    pdu: Mapping[str, Any], version: RoomVersion, server_name: str, key: SigningKey
) -> dict[str, Any]:
    """A copy of an event that has its content hash, with one more signature.

    Raises:
        InvalidEvent: the PDU has no canonical JSON.
    """
    try:
        signature = key.sign(encode(essential_part(pdu, version)))
    except InvalidJson as error:
        raise InvalidEvent(str(error)) from None
    return _with_signature(pdu, server_name, key, signature)


def verify_signed_json(
    json_object: Mapping[str, Any], server_name: str, verify_key_bytes: bytes, key_id: str
) -> None:
    """Check the signature that `server_name` made on `json_object` with one key.

    For objects other than events, whose signatures cover their redacted form.

    Raises:
        InvalidSignature: it is missing, malformed or wrong, or the object cannot be encoded.
    """
    signatures = json_object.get("signatures")
    of_server = signatures.get(server_name) if isinstance(signatures, dict) else None
    signature = of_server.get(key_id) if isinstance(of_server, dict) else None
    if type(signature) is not str:
        raise InvalidSignature(f"no signature of {server_name} with key {key_id}")
    try:
        message = encode(_signed_part(json_object))
    except InvalidJson as error:
        raise InvalidSignature(f"{server_name}: signature cannot be checked: {error}") from None
    if not is_valid_signature(message, signature, verify_key_bytes):
        raise InvalidSignature(f"wrong signature of {server_name} with key {key_id}")


def is_valid_signature(message: bytes, signature_base64: str, verify_key: bytes) -> bool:
    """Whether a Base64 signature of `message` verifies under an Ed25519 key of 32 bytes."""
    try:
        signature = decode_base64(signature_base64)
        if len(signature) != _SIGNATURE_BYTES or len(verify_key) != _KEY_BYTES:
            return False
        crypto_sign_open(signature + message, verify_key)
    except (ValueError, BadSignatureError):
        return False
    return True


def required_signers(event: Event) -> set[str]:
    """The servers that must have signed `event`. Empty for some invites, see below.

    Raises:
        InvalidIdentifier: an identifier that names such a server is malformed.
    """
    return required_signers_of(event.pdu, event.room_version)


def required_signers_of(pdu: Mapping[str, Any], version: RoomVersion) -> set[str]:
    """`required_signers` for a PDU whose `sender`, `type` and `content` have the right types.

    * the sender's server, unless the event is an invite made from a third-party invite: then any
      server may have sent it in the inviter's name, and the authorisation rules check it;
    * versions 1 and 2: the server in the event id;
    * versions from 8 on, a join that names `join_authorised_via_users_server`: that user's server.

    Source: server-server API, "Validating hashes and signatures on received events"; room
    version 8, "Authorisation rules".

    Raises:
        InvalidIdentifier: an identifier that names such a server is malformed.
    """
    content = pdu["content"]
    membership = content.get("membership") if pdu["type"] == "m.room.member" else None
    signers = set()
    if not (membership == "invite" and "third_party_invite" in content):
        signers.add(domain_of(pdu["sender"]))
    if version.event_format is EventFormat.V1:
        signers.add(pdu["event_id"].partition(":")[2])
    if (
        version.restricted_joins
        and membership == "join"
        and "join_authorised_via_users_server" in content
    ):
        signers.add(domain_of(content["join_authorised_via_users_server"]))
    return signers


def _signed_part(json_object: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in json_object.items() if key not in ("signatures", "unsigned")
    }


def _with_signature(
    json_object: Mapping[str, Any], server_name: str, key: SigningKey, signature: bytes
) -> dict[str, Any]:
    present = json_object.get("signatures")
    signatures = dict(present) if isinstance(present, dict) else {}
    of_server = signatures.get(server_name)
    signatures[server_name] = {
        **(of_server if isinstance(of_server, dict) else {}),
        key.key_id: encode_base64(signature),
    }
    return {**json_object, "signatures": signatures}
