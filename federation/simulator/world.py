"""What all residents of a simulated federation share: rooms, identities, known keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from federation.simulator.built_event import BuiltEvent
from federation.simulator.identity import Identities
from federation.simulator.room import RoomBuilder
from federation.simulator.states import StateNode

_LISTINGS_KEPT = 8


class StateListing(NamedTuple):
    """A room state and its auth chain, as event ids.

    Attributes:
        state: the state's events.
        auth_chain: what their auth events lead to; may overlap with `state`, as in `/state_ids`.
    """

    state: Sequence[str]
    auth_chain: Sequence[str]


class World:
    """The rooms as they truly are; what a resident admits to know is its own affair.

    Attributes:
        identities: every simulated server.
        rooms: by room id.
        verify_keys: public keys of servers that are not simulated, by server name and key id.
    """

    def __init__(self, identities: Identities) -> None:
        self.identities = identities
        self.rooms: dict[str, RoomBuilder] = {}
        self.verify_keys: dict[tuple[str, str], bytes] = {}
        self._listings: dict[tuple[str, StateNode], StateListing] = {}

    def find_event(self, event_id: str) -> tuple[RoomBuilder, BuiltEvent] | None:
        """The event and its room."""
        for room in self.rooms.values():
            event = room.events.get(event_id)
            if event is not None:
                return room, event
        return None

    def verify_key(self, server_name: str, key_id: str) -> bytes | None:
        """The public key, where it is known."""
        key = self.verify_keys.get((server_name, key_id))
        if key is None and server_name in self.identities:
            identity = self.identities.of(server_name)
            if identity.key_id == key_id:
                return identity.verify_key
            return next((old.verify_key for old in identity.old_keys if old.key_id == key_id), None)
        return key

    def list_state(self, room: RoomBuilder, node: StateNode) -> StateListing:
        """The state at `node`. Takes tens of milliseconds for large rooms; safe in a thread."""
        listing = self._listings.get((room.room_id, node))
        if listing is None:
            state = list(node.materialise().values())
            listing = StateListing(state, room.auth_chain(state))
            while len(self._listings) >= _LISTINGS_KEPT:
                self._listings.pop(next(iter(self._listings)), None)
            self._listings[(room.room_id, node)] = listing
        return listing
