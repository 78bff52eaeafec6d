"""The wire: what homeservers say to each other.

Events and room versions, hashes, signatures and keys, discovery, the federation client and
server. Knows nothing of the database or of the resync.
"""

from federation.checks import Outcome, PduCheck, VerifyKey, check_pdus, keys_needed
from federation.errors import FederationError
from federation.events import Event, StateKey
from federation.room_versions import ROOM_VERSIONS, RoomVersion, get_room_version

__all__ = [
    "ROOM_VERSIONS",
    "Event",
    "FederationError",
    "Outcome",
    "PduCheck",
    "RoomVersion",
    "StateKey",
    "VerifyKey",
    "check_pdus",
    "get_room_version",
    "keys_needed",
]
