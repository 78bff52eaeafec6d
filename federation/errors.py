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
