"""Leaving partially stated rooms: by the user, by a kick or ban, by purging the room.

Nothing of it waits for the resync. When no local user is left in the room, its resync ends.
Source: faster joins, "Leaving (and kicks and bans) after a partial join".
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy import Connection

from federation.client import FederationClient
from federation.errors import FederationError, HttpError
from federation.events import Event, StateKey
from resync.acting import EventCreator
from storage import current_state, departure, partial_state, rooms
from storage.database import Database

logger = structlog.get_logger(__name__)

MEMBER = "m.room.member"
SERVERS_ASKED = 5
"""How many servers are asked whether we are still in a room."""


class Departures:
    """Lets local users leave, and ends the partial state of rooms that nobody is in any more."""

    def __init__(
        self,
        *,
        database: Database,
        client: FederationClient,
        creator: EventCreator,
        stop_resync: Callable[[str], None],
        forget: Callable[[str], None],
        wake_waiting: Callable[[str], None],
        instance_name: str,
        server_name: str,
    ) -> None:
        """
        Args:
            stop_resync: ends a resync of a room that runs in this process.
            forget: forgets what was loaded of a room that has been purged.
            wake_waiting: wakes those who wait for a room.
        """
        self._database = database
        self._client = client
        self._creator = creator
        self._stop_resync = stop_resync
        self._forget = forget
        self._wake_waiting = wake_waiting
        self._instance_name = instance_name
        self._server_name = server_name

    async def leave(self, room_id: str, user_id: str) -> Event:
        """A local user leaves; the servers known to be in the room are told at once.

        Raises:
            NotInRoom, EventNotAllowed: the user is not in the room.
        """
        event = await self._creator.send(
            room_id,
            user_id,
            MEMBER,
            {"membership": "leave"},
            state_key=user_id,
            after_storing=lambda connection: self._abandon_if_empty(connection, room_id),
        )
        await self._follow(room_id)
        return event

    async def purge(self, room_id: str) -> bool:
        """Deletes everything that is known of a room; False: nothing was.

        Nobody is told: users who are to leave do so before.
        """

        def purge(connection: Connection) -> bool:
            rooms.lock_room(connection, room_id)
            return departure.purge_room(connection, room_id)

        purged = await self._database.run(purge)
        if purged:
            self._forget(room_id)
            logger.info("room purged", room_id=room_id)
        await self._follow(room_id)
        return purged

    async def check_removed(self, room_id: str) -> bool:
        """Ends the resync if other servers have removed the last local user from the room.

        Partial state may show a kick or ban that is not allowed in truth, by somebody who was
        banned. A server that refuses to talk to us about the room confirms it; when one still
        does, or none answers, the resync goes on and will find out.

        Returns:
            Whether the room is partial no more.
        """
        removal = await self._database.read(_load_removal, room_id, self._server_name)
        if removal is None:
            return False
        event_id, servers = removal
        if not await self._is_confirmed(event_id, servers):
            return False
        await self._database.run(self._abandon_if_empty, room_id)
        await self._follow(room_id)
        return True

    async def _is_confirmed(self, event_id: str, servers: list[str]) -> bool:
        for server in servers[:SERVERS_ASKED]:
            try:
                await self._client.event(server, event_id)
            except HttpError as error:
                if error.status == 403:
                    return True
            except FederationError as error:
                logger.info("cannot confirm a removal", server=server, error=str(error))
            else:
                return False
        return False

    def _abandon_if_empty(self, connection: Connection, room_id: str) -> None:
        """In the caller's transaction."""
        rooms.lock_room(connection, room_id)
        if partial_state.load_partial_room(connection, room_id) is None:
            return
        if "join" in current_state.load_local_memberships(connection, room_id).values():
            return
        departure.abandon_partial_room(connection, room_id, instance_name=self._instance_name)

    async def _follow(self, room_id: str) -> None:
        """What has been committed is made known in this process."""
        if await self._database.read(partial_state.load_partial_room, room_id) is None:
            self._stop_resync(room_id)
            self._wake_waiting(room_id)


def _load_removal(
    connection: Connection, room_id: str, server_name: str
) -> tuple[str, list[str]] | None:
    """The event that removed a local user, and whom to ask; None if one is in the room, or the
    room is not partial."""
    room = partial_state.load_partial_room(connection, room_id)
    if room is None:
        return None
    memberships = current_state.load_local_memberships(connection, room_id)
    if not memberships or "join" in memberships.values():
        return None
    keys = [StateKey(MEMBER, user_id) for user_id in memberships]
    state = current_state.load_entries(connection, room_id, keys)
    if not state:
        return None
    known = [room.joined_via] if room.joined_via else []
    known += partial_state.load_partial_servers(connection, room_id)
    servers = [server for server in dict.fromkeys(known) if server != server_name]
    return next(iter(state.values())), servers
