"""Server identities: a server name and the Ed25519 key it signs with.

Keys are derived from a seed and the server name, so a federation built twice from one seed signs
the same bytes. They protect nothing and must never be used outside a simulation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from federation.signing import SigningKey, encode_base64, sign_json

KEY_LIFETIME_MS = 7 * 24 * 3600 * 1000
"""How far ahead of now the `valid_until_ts` of a simulated server lies, in milliseconds."""


@dataclass(frozen=True, slots=True)
class OldKey:
    """A key that a server signed with until `expired_ts` (milliseconds)."""

    key_id: str
    verify_key: bytes
    expired_ts: int


class ServerIdentity:
    """A simulated homeserver's name and keys.

    Attributes:
        server_name: the server's name, with its port where it has one.
        key: the current signing key.
        old_keys: the keys it used before, as `old_verify_keys` lists them.
        valid_until_ts: fixed `valid_until_ts` (milliseconds) to publish; None: a week ahead.
    """

    def __init__(self, server_name: str, key: SigningKey) -> None:
        self.server_name = server_name
        self.old_keys: list[OldKey] = []
        self.valid_until_ts: int | None = None
        self._use(key)

    def _use(self, key: SigningKey) -> None:
        self.key = key
        self.key_id = key.key_id
        self.verify_key = key.verify_key

    def sign(self, message: bytes) -> str:
        """The Ed25519 signature of `message`, in unpadded Base64."""
        return encode_base64(self.key.sign(message))

    def sign_json(self, value: dict[str, Any]) -> dict[str, Any]:
        """`value` with this server's signature added to those it has."""
        return sign_json(value, self.server_name, self.key)

    def rotate(self, expired_ts: int) -> None:
        """Retire the current key at `expired_ts` (milliseconds) and sign with a new one."""
        self.old_keys.append(OldKey(self.key_id, self.verify_key, expired_ts))
        self._use(_derive_key(b"rotate" + self.key.seed))

    def server_keys(self, now_ms: int) -> dict[str, Any]:
        """The answer of `/_matrix/key/v2/server`, signed by this server."""
        return self.sign_json(
            {
                "server_name": self.server_name,
                "valid_until_ts": (
                    now_ms + KEY_LIFETIME_MS if self.valid_until_ts is None else self.valid_until_ts
                ),
                "verify_keys": {self.key_id: {"key": encode_base64(self.verify_key)}},
                "old_verify_keys": {
                    old.key_id: {
                        "key": encode_base64(old.verify_key),
                        "expired_ts": old.expired_ts,
                    }
                    for old in self.old_keys
                },
            }
        )


def derive_identity(server_name: str, seed: int) -> ServerIdentity:
    """The identity of `server_name` in the federation grown from `seed`."""
    return ServerIdentity(server_name, _derive_key(f"{seed}/{server_name}".encode()))


class Identities:
    """Every server of a simulated federation, made when first asked for.

    A server may be known here without listening anywhere: its members are in rooms, its keys are
    known to the notaries, and nobody can reach it, as happens to servers in the real federation.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._identities: dict[str, ServerIdentity] = {}

    def of(self, server_name: str) -> ServerIdentity:
        """The identity of `server_name`, the same one each time."""
        identity = self._identities.get(server_name)
        if identity is None:
            identity = self._identities[server_name] = derive_identity(server_name, self._seed)
        return identity

    def __contains__(self, server_name: object) -> bool:
        return server_name in self._identities

    def __iter__(self) -> Iterator[ServerIdentity]:
        return iter(list(self._identities.values()))


def _derive_key(secret: bytes) -> SigningKey:
    seed = hashlib.sha256(secret).digest()
    return SigningKey(version="a_" + hashlib.sha256(seed).hexdigest()[:4], seed=seed)
