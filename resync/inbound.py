"""What other servers are answered, from what this server knows of its rooms.

A room in partial state answers what it knows (`event`, `get_missing_events`, `backfill`) and
refuses what needs its full state.
Source: server-server API, "Retrieving events", "Backfilling and retrieving missing events";
MSC3895; faster joins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection

from federation.canonical_json import parse_json
from federation.events import StateKey
from federation.inbound import (
    MissingEventsQuery,
    RequestRefused,
    Transaction,
    is_allowed_by_acl,
    unable_due_to_partial_state,
)
from resync.receive import TransactionReceiver
from storage import current_state, events, history, partial_state, rooms, state_groups
from storage.bulk import is_storable
from storage.database import Database
from storage.errors import StorageError
from storage.history import HistoricEvent

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

SERVER_ACL = StateKey("m.room.server_acl", "")
HISTORY_VISIBILITY = StateKey("m.room.history_visibility", "")


class InboundAnswers:
    """Answers authenticated requests; see `federation.inbound.InboundHandler`."""

    def __init__(
        self,
        *,
        database: Database,
        transactions: TransactionReceiver,
        sender_is_back: Callable[[str], Awaitable[None]],
    ) -> None:
        """`sender_is_back(server)` is told of servers that send us transactions."""
        self._database = database
        self._transactions = transactions
        self._sender_is_back = sender_is_back

    async def receive(self, origin: str, transaction: Transaction) -> str:
        """Takes a transaction."""
        answer = await self._transactions.receive(origin, transaction)
        try:
            await self._sender_is_back(origin)
        except StorageError as error:
            # Its events are staged: whether we have some for it is found out later as well.
            logger.error("cannot look for what a server missed", origin=origin, error=str(error))
        return answer

    async def event(self, origin: str, event_id: str) -> str:
        """One accepted event of a room that the sender is in.

        Raises:
            RequestRefused: 404 or 403.
        """
        return await self._read(_event, origin, event_id)

    async def missing_events(
        self, origin: str, room_id: str, query: MissingEventsQuery
    ) -> list[str]:
        """Events that lead to `query.latest`, oldest first."""

        def load(connection: Connection) -> list[str]:
            viewer = _Viewer(connection, origin, room_id)
            found = history.load_before(
                connection,
                room_id,
                query.latest,
                excluded=query.earliest,
                limit=query.limit,
                min_depth=query.min_depth,
            )
            return [event.json for event in reversed(viewer.visible(found))]

        return await self._read(load)

    async def backfill(
        self, origin: str, room_id: str, start: Sequence[str], limit: int
    ) -> list[str]:
        """The events of `start` and those before them, newest first."""

        def load(connection: Connection) -> list[str]:
            viewer = _Viewer(connection, origin, room_id)
            found = history.load_in_graph(connection, room_id, start)
            found += history.load_before(connection, room_id, start, excluded=(), limit=limit)
            return [event.json for event in viewer.visible(found[:limit])]

        return await self._read(load)

    async def refuse(self, origin: str, room_id: str) -> RequestRefused:
        """Why a request that needs the full state of a room is not answered."""
        return await self._read(_refuse, origin, room_id)

    async def _read(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """
        Raises:
            RequestRefused: 503, the database does not answer, or as `function` raises it.
        """
        try:
            return await self._database.read(function, *args, **kwargs)
        except StorageError as error:
            logger.error("a request could not be answered", error=str(error))
            raise RequestRefused(503, "M_UNKNOWN", "The database does not answer") from None


class _Viewer:
    """A server that asks about a room, and what it may see of it."""

    def __init__(self, connection: Connection, server: str, room_id: str) -> None:
        """Raises RequestRefused: 404, the room is unknown; 403, the server is not in it."""
        if not is_storable(room_id) or rooms.load_room_version(connection, room_id) is None:
            raise RequestRefused(404, "M_NOT_FOUND", "This server does not know the room")
        contents = _load_contents(connection, room_id, [SERVER_ACL, HISTORY_VISIBILITY])
        _check_acl(server, contents.get(SERVER_ACL))
        self._named_by_join = history.is_partial_server(connection, room_id, server)
        if not self._named_by_join and not history.has_member(connection, room_id, server):
            raise RequestRefused(403, "M_FORBIDDEN", "This server is not in the room")
        self._connection = connection
        self._server = server
        visibility = contents.get(HISTORY_VISIBILITY, {}).get("history_visibility", "shared")
        self._sees_all = visibility not in ("invited", "joined")

    def visible(self, events: Sequence[HistoricEvent]) -> list[HistoricEvent]:
        """Those of `events` that the room's history visibility shows to the server.

        Where only members see what happened while they were in the room, a partial state, which
        lacks members, tells nothing; the servers that our join named were in the room then.
        """
        if self._sees_all:
            return list(events)
        full = [event.event_id for event in events if not event.partial]
        groups = state_groups.load_event_state_groups(self._connection, full)
        inside = state_groups.find_with_member(
            self._connection, set(groups.values()), self._server, ("join", "invite")
        )
        return [
            event
            for event in events
            if (self._named_by_join if event.partial else groups.get(event.event_id) in inside)
        ]


def _event(connection: Connection, origin: str, event_id: str) -> str:
    event = history.load_event(connection, event_id) if is_storable(event_id) else None
    if event is None:
        raise RequestRefused(404, "M_NOT_FOUND", "This server does not have the event")
    viewer = _Viewer(connection, origin, event.room_id)
    # State is shown to whoever is in the room. Other outliers are left from before we left it.
    is_state = event.outlier and "state_key" in parse_json(event.json)
    if not is_state and not viewer.visible([event]):
        raise RequestRefused(404, "M_NOT_FOUND", "This server does not have the event")
    return event.json


def _refuse(connection: Connection, origin: str, room_id: str) -> RequestRefused:
    if not is_storable(room_id) or rooms.load_room_version(connection, room_id) is None:
        return RequestRefused(404, "M_NOT_FOUND", "This server does not know the room")
    _check_acl(origin, _load_contents(connection, room_id, [SERVER_ACL]).get(SERVER_ACL))
    if partial_state.load_partial_room(connection, room_id) is not None:
        return unable_due_to_partial_state()
    return RequestRefused(
        404, "M_NOT_FOUND", "This server does not answer that; ask another one in the room"
    )


def _load_contents(
    connection: Connection, room_id: str, keys: Sequence[StateKey]
) -> dict[StateKey, Mapping[str, Any]]:
    """The contents of entries of the current state; what is not there is left out."""
    state = current_state.load_entries(connection, room_id, keys)
    loaded = events.load_events(connection, list(state.values()))
    return {
        key: loaded[event_id].event.content for key, event_id in state.items() if event_id in loaded
    }


def _check_acl(server: str, acl: Mapping[str, Any] | None) -> None:
    """Raises RequestRefused, 403, if the room's server ACL denies the server."""
    if not is_allowed_by_acl(server, acl):
        raise RequestRefused(403, "M_FORBIDDEN", "The room's server ACL denies this server")
