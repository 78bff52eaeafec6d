"""What a room that states are fetched for is made of: whom to ask, and what is known by now."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

from resync.patience import RoomPatience, no_patience
from resync.servers import ServerRotation
from storage import events as event_store
from storage import history, partial_state
from storage.database import Database


@dataclass(frozen=True, slots=True)
class RoomToFetch:
    """The room whose states are fetched, whom to ask, and what is known of it by now.

    Attributes:
        stored: ids of events that earlier fetches found to be stored, or stored themselves.
        entries: what the state events among them set, so that a state which is much like those
            before costs no more than what differs.
        patience: with what a later attempt may have; none unless given.
    """

    room_id: str
    room_version: str
    servers: ServerRotation
    stored: set[str] = field(default_factory=set)
    entries: dict[str, event_store.StateEntry] = field(default_factory=dict)
    patience: RoomPatience = field(default_factory=no_patience)


def load_room_to_fetch(
    connection: Connection,
    room_id: str,
    room_version: str,
    patience: RoomPatience | None = None,
    *,
    database: Database,
    own_server_name: str,
) -> RoomToFetch:
    """The room with the servers that can be asked: those of the partial join, or of its members."""
    room = partial_state.load_partial_room(connection, room_id)
    if room is None:
        servers = history.load_joined_servers(connection, room_id)
    else:
        servers = partial_state.load_partial_servers(connection, room_id)
    rotation = ServerRotation(
        database,
        own_server_name=own_server_name,
        joined_via=None if room is None else room.joined_via,
        servers=servers,
    )
    return RoomToFetch(room_id, room_version, rotation, patience=patience or no_patience())
