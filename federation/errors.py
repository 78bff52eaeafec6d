"""The named errors of the wire.

Every message says what failed and, where it is known, at which server, so that it can be
shown to an operator as it is.
"""

from __future__ import annotations


class FederationError(Exception):
    """Anything that goes wrong between us and another homeserver."""


class UnknownRoomVersion(FederationError):
    """A room version that is not among 1 to 12."""

    def __init__(self, room_version: str) -> None:
        super().__init__(
            f"room version {room_version!r} is not supported: this worker knows versions 1 to 12"
        )
        self.room_version = room_version


class InvalidEvent(FederationError):
    """A PDU that does not have the format of its room version; it is dropped (check 1)."""


class InvalidIdentifier(FederationError):
    """A room id, user id, event id or server name that does not follow its grammar."""


class TransportError(FederationError):
    """A request that brought no answer, or none that can be read.

    Refused or broken connections, time-outs, TLS failures, deny-listed addresses, failed
    discovery; the subclass `InvalidResponse` for answers that came but are unusable. Nothing of
    the answer has been kept; another server, or the same one later, may do better.
    """

    def __init__(self, destination: str, reason: str) -> None:
        super().__init__(f"{destination}: {reason}")
        self.destination = destination
        self.reason = reason

    def __reduce__(self) -> tuple[type[TransportError], tuple[str, str]]:
        return type(self), (self.destination, self.reason)


class InvalidResponse(TransportError):
    """An answer that is not JSON, is truncated, too large, or does not have the right shape."""


class HttpError(FederationError):
    """The server answered, with a status other than 200.

    Attributes:
        destination: the server's name.
        status: the HTTP status.
        errcode: the Matrix error code, "M_UNKNOWN" where the body has none.
        message: the server's own words, shortened.
        retry_after_ms: how long the server asks us to wait (429), in milliseconds, or None.
    """

    def __init__(
        self,
        destination: str,
        status: int,
        errcode: str,
        message: str,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{destination}: answered {status} {errcode}: {message}")
        self.destination = destination
        self.status = status
        self.errcode = errcode
        self.message = message
        self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[type[HttpError], tuple[str, int, str, str, int | None]]:
        return type(self), (
            self.destination,
            self.status,
            self.errcode,
            self.message,
            self.retry_after_ms,
        )


class InvalidTlsFile(FederationError):
    """A TLS certificate or private key file that cannot be used; the message names the file."""


class InvalidJson(FederationError):
    """Text that is not JSON as Matrix uses it, or a value that has no canonical JSON."""


class InvalidSignature(FederationError):
    """A signature that is missing, malformed or wrong; the message names server and key."""


class UncheckableSignature(InvalidSignature):
    """A signature whose key could not be had, or not for the time of the event."""


class InvalidSigningKey(FederationError):
    """A signing key file that cannot be used; the message names the file."""


class InvalidAddressRange(FederationError):
    """An entry of the deny or allow list that is not an IP range."""


class InvalidKeyResponse(FederationError):
    """Published keys that are malformed or not signed as they must be."""


def is_outage(error: FederationError) -> bool:
    """Whether an error says that the server itself is unwell, rather than that it said no."""
    if isinstance(error, HttpError):
        return error.status == 429 or error.status >= 500
    return isinstance(error, TransportError)
