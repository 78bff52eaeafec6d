"""A resident homeserver: the federation endpoints a joining server needs, on a real socket.

It answers as deployed servers do, unless its fault plan says otherwise.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from federation.errors import FederationError, InvalidEvent
from federation.hashing import compute_event_id
from federation.simulator import joins, queries
from federation.simulator.answers import Answer, RefusedError
from federation.simulator.authentication import Authenticator, read_json
from federation.simulator.built_event import BuiltEvent
from federation.simulator.faults import (
    CutConnectionError,
    Fault,
    FaultPlan,
    IgnoreOmitMembers,
    stream,
)
from federation.simulator.history import ConflictingForks, UnknownReference
from federation.simulator.identity import ServerIdentity
from federation.simulator.push import push_events
from federation.simulator.room import RoomBuilder
from federation.simulator.world import World

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The largest request body that is read."""
CHUNKED_FROM_BYTES = 1024 * 1024
"""Larger answers are sent without announcing their length, as deployed servers stream them."""
_PDUS_PER_TRANSACTION = 50


@dataclass(slots=True)
class Asked:
    """A request that a resident got.

    Attributes:
        endpoint: one of `ENDPOINTS`.
        method: the HTTP method.
        target: path and query, decoded.
        origin: the server that signed it; empty if that was not checked.
        status: of the answer; 0 if there was none.
    """

    endpoint: str
    method: str
    target: str
    origin: str = ""
    status: int = 0


class RequestLog(list[Asked]):
    """The requests a resident got, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = asyncio.Event()

    def append(self, asked: Asked) -> None:
        """Note a request, as soon as its headers are there."""
        super().append(asked)
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def wait_for(self, endpoint: str, count: int = 1) -> None:
        """Wait until there were `count` requests to `endpoint` in all."""
        while self.count(endpoint) < count:
            await self._arrived.wait()

    def of(self, endpoint: str) -> list[Asked]:
        """Those to one endpoint."""
        return [asked for asked in self if asked.endpoint == endpoint]

    def count(self, endpoint: object = None) -> int:
        """How many there were, in all or to one endpoint."""
        return sum(endpoint is None or asked.endpoint == endpoint for asked in self)


@dataclass(slots=True)
class _Call:
    """One request on its way through an endpoint."""

    request: web.Request
    origin: str
    content: Any
    faults: Collection[Fault]

    def path(self, name: str) -> str:
        return self.request.match_info[name]


class Resident:
    """One homeserver of a simulated federation.

    Attributes:
        identity: its name and keys.
        faults: what it does wrong.
        requests: what it was asked.
        unseen: ids of events it has not received: it does not give them out, and a server whose
            only join is among them is not in the room.
        supports_partial_state: whether it honours `omit_members`.
        on_join: called with the room and the join event when a server has joined through it.
    """

    def __init__(
        self, world: World, identity: ServerIdentity, ssl_context: ssl.SSLContext | None
    ) -> None:
        self.identity = identity
        self.faults = FaultPlan()
        self.requests = RequestLog()
        self.unseen: set[str] = set()
        self.supports_partial_state = True
        self.on_join: Callable[[RoomBuilder, BuiltEvent], None] = lambda room, join: None
        self._world = world
        self._ssl_context = ssl_context
        self._authenticator = Authenticator(world, identity.server_name)
        self._runner: web.AppRunner | None = None
        self._address: tuple[str, int] | None = None
        self._transactions = 0

    @property
    def server_name(self) -> str:
        """The server's name, with its port."""
        return self.identity.server_name

    # -- the socket -----------------------------------------------------------------------------

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket, which this resident closes in the end."""
        self._address = listening.getsockname()[:2]
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.SockSite(self._runner, listening, ssl_context=self._ssl_context).start()

    async def disappear(self) -> None:
        """Stop listening and break all connections: further ones are refused."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in runner.server.connections if runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            self.faults.release()
            await runner.cleanup()

    async def come_back(self) -> None:
        """Listen on the same port again."""
        if self._runner is None and self._address is not None:
            await self.start(bind(*self._address))

    stop = disappear

    async def push(
        self, destination: str, events: Iterable[BuiltEvent], *, transaction_id: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Send events to another server over `/send`; see `push_events`."""
        self._transactions += 1
        return await push_events(
            self.identity,
            destination,
            events,
            transaction_id=transaction_id or f"simulated{self._transactions}",
            now_ms=_now_ms(),
        )

    # -- requests -------------------------------------------------------------------------------

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for endpoint, (method, path, answer) in _ROUTES.items():
            app.router.add_route(method, path, self._handler(endpoint, answer))
        app.router.add_route("*", "/{path:.*}", self._handler("unknown", _unrecognised))
        return app

    def _handler(
        self, endpoint: str, answer: Callable[[Resident, _Call], Awaitable[Answer]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            asked = Asked(endpoint, request.method, unquote(request.raw_path))
            self.requests.append(asked)
            faults = self.faults.take(endpoint, asked.target)
            released = self.faults.released
            try:
                for fault in faults:
                    await fault.before(released)
                content = await read_json(request)
                if endpoint not in _PUBLIC:
                    asked.origin = await self._authenticator.check_request(request, content)
                call = _Call(request, asked.origin, content, faults)
                result = await answer(self, call)
                for fault in faults:
                    result = fault.alter(result)
            except RefusedError as error:
                result = error.answer()
            except CutConnectionError:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            except (FederationError, TypeError, ValueError, KeyError) as error:
                result = Answer.of(400, errcode="M_INVALID_PARAM", error=str(error))
            asked.status = result.status
            return await self._send(request, result, faults, released)

        return handle

    async def _send(
        self,
        request: web.Request,
        answer: Answer,
        faults: Collection[Fault],
        released: asyncio.Event,
    ) -> web.StreamResponse:
        size = answer.size()
        body = stream(answer.chunks())
        for fault in faults:
            body = fault.send(body, size, released)
            size = fault.announced_size(size)
        response = web.StreamResponse(status=answer.status)
        response.content_type = "application/json"
        if size < CHUNKED_FROM_BYTES:
            response.content_length = size
        try:
            await response.prepare(request)
            async for chunk in body:
                await response.write(chunk)
            await response.write_eof()
        except CutConnectionError:
            # Unlike an abort this lets what was written so far reach the other side.
            if request.transport is not None:
                request.transport.close()
        return response

    # -- what it knows --------------------------------------------------------------------------

    def _room(self, room_id: str) -> RoomBuilder:
        room = self._world.rooms.get(room_id)
        if room is None:
            raise RefusedError(404, "M_NOT_FOUND", f"Unknown room {room_id}")
        return room

    def _check_in_room(self, room: RoomBuilder, origin: str) -> None:
        joins = room.joined_members_of(origin)
        if not any(join.event_id not in self.unseen for join in joins):
            raise RefusedError(403, "M_FORBIDDEN", "Host not in room.")

    def _event(self, room: RoomBuilder, event_id: str) -> BuiltEvent:
        event = room.events.get(event_id)
        if event is None or event_id in self.unseen:
            raise RefusedError(404, "M_NOT_FOUND", f"Could not find event {event_id}")
        return event

    def _known_room_event(self, call: _Call, event_id: str) -> tuple[RoomBuilder, BuiltEvent]:
        room = self._room(call.path("room_id"))
        self._check_in_room(room, call.origin)
        return room, self._event(room, event_id)

    async def _accept(self, room: RoomBuilder, pdu: dict[str, Any]) -> BuiltEvent:
        """Check and store an event another server sent. Raises `RefusedError`."""
        await self._authenticator.check_event(pdu, room.version)
        authoriser = pdu["content"].get("join_authorised_via_users_server", "")
        is_ours = str(authoriser).partition(":")[2] == self.server_name
        try:
            event = room.accept(pdu, countersigner=self.identity if is_ours else None)
        except (InvalidEvent, ConflictingForks, UnknownReference) as error:
            raise RefusedError(400, "M_INVALID_PARAM", str(error)) from None
        self.unseen.discard(event.event_id)
        return event

    # -- endpoints ------------------------------------------------------------------------------

    async def _make_join(self, call: _Call) -> Answer:
        room = self._room(call.path("room_id"))
        user_id = call.path("user_id")
        if user_id.partition(":")[2] != call.origin:
            raise RefusedError(403, "M_FORBIDDEN", f"{user_id} is not a user of {call.origin}")
        versions = call.request.query.getall("ver", [])
        return joins.make_join(room, self.server_name, user_id, versions, _now_ms())

    async def _send_join(self, call: _Call) -> Answer:
        room = self._room(call.path("room_id"))
        joins.check_join(call.content, call.origin)
        joins.check_may_join(room, self.server_name, call.content["sender"])
        event_id = compute_event_id(call.content, room.version)
        if call.path("event_id") != event_id:
            raise RefusedError(400, "M_INVALID_PARAM", f"The event's id is {event_id}")
        is_new = event_id not in room.events
        join = await self._accept(room, call.content)
        if is_new:
            self.on_join(room, join)
        omit_members = (
            call.request.query.get("omit_members") == "true"
            and self.supports_partial_state
            and not any(isinstance(fault, IgnoreOmitMembers) for fault in call.faults)
        )
        return await joins.send_join(
            self._world, room, self.server_name, join, omit_members=omit_members
        )

    async def _state_ids(self, call: _Call) -> Answer:
        room, event = self._known_room_event(call, call.request.query.get("event_id", ""))
        return await queries.state_ids(self._world, room, event)

    async def _state(self, call: _Call) -> Answer:
        room, event = self._known_room_event(call, call.request.query.get("event_id", ""))
        return await queries.state(self._world, room, event)

    async def _get_event(self, call: _Call) -> Answer:
        event_id = call.path("event_id")
        found = self._world.find_event(event_id)
        if found is None:
            raise RefusedError(404, "M_NOT_FOUND", f"Could not find event {event_id}")
        self._check_in_room(found[0], call.origin)
        event = self._event(found[0], event_id)
        return queries.one_event(self.server_name, event, _now_ms())

    async def _event_auth(self, call: _Call) -> Answer:
        room, event = self._known_room_event(call, call.path("event_id"))
        return queries.event_auth(room, event)

    async def _get_missing_events(self, call: _Call) -> Answer:
        room = self._room(call.path("room_id"))
        self._check_in_room(room, call.origin)
        return queries.missing_events(
            room,
            _ids(call.content["latest_events"]),
            _ids(call.content["earliest_events"]),
            limit=int(call.content.get("limit", 10)),
            min_depth=int(call.content.get("min_depth", 0)),
            unseen=self.unseen,
        )

    async def _backfill(self, call: _Call) -> Answer:
        room = self._room(call.path("room_id"))
        self._check_in_room(room, call.origin)
        query = call.request.query
        return queries.backfill(
            room,
            self.server_name,
            query.getall("v", []),
            limit=int(query.get("limit", "10")),
            unseen=self.unseen,
            now_ms=_now_ms(),
        )

    async def _receive(self, call: _Call) -> Answer:
        """`/send`: the events of a transaction, each with its own result."""
        pdus = call.content["pdus"]
        if len(pdus) > _PDUS_PER_TRANSACTION:
            raise RefusedError(400, "M_INVALID_PARAM", "Too many PDUs")
        results: dict[str, dict[str, str]] = {}
        for pdu in pdus:
            room = self._world.rooms.get(str(pdu.get("room_id")))
            if room is None:
                continue
            event_id = compute_event_id(pdu, room.version)
            try:
                await self._accept(room, pdu)
                results[event_id] = {}
            except RefusedError as error:
                results[event_id] = {"error": error.error}
        return Answer.of(pdus=results)

    async def _server_keys(self, call: _Call) -> Answer:
        return Answer.of(200, **self.identity.server_keys(_now_ms()))

    async def _query_keys(self, call: _Call) -> Answer:
        """The notary: keys of any server of the simulation, signed by it and by this one."""
        if call.request.method == "GET":
            asked: Iterable[str] = [call.path("server_name")]
        else:
            asked = _ids(list(call.content["server_keys"]))
        now_ms = _now_ms()
        identities = self._world.identities
        answers = [
            self.identity.sign_json(identities.of(name).server_keys(now_ms))
            for name in asked
            if name in identities
        ]
        return Answer.of(server_keys=answers)

    async def _version(self, call: _Call) -> Answer:
        return Answer.of(server={"name": "federation.simulator", "version": "1"})


def bind(host: str, port: int) -> socket.socket:
    """A listening address on loopback; port 0 takes a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


async def _unrecognised(resident: Resident, call: _Call) -> Answer:
    raise RefusedError(404, "M_UNRECOGNIZED", "Unrecognized request")


def _ids(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)]


def _now_ms() -> int:
    return int(time.time() * 1000)


_V1 = "/_matrix/federation/v1"
_ROUTES: dict[str, tuple[str, str, Callable[[Resident, _Call], Awaitable[Answer]]]] = {
    "make_join": ("GET", _V1 + "/make_join/{room_id}/{user_id}", Resident._make_join),
    "send_join": (
        "PUT",
        "/_matrix/federation/v2/send_join/{room_id}/{event_id}",
        Resident._send_join,
    ),
    "state_ids": ("GET", _V1 + "/state_ids/{room_id}", Resident._state_ids),
    "state": ("GET", _V1 + "/state/{room_id}", Resident._state),
    "event": ("GET", _V1 + "/event/{event_id}", Resident._get_event),
    "event_auth": ("GET", _V1 + "/event_auth/{room_id}/{event_id}", Resident._event_auth),
    "get_missing_events": (
        "POST",
        _V1 + "/get_missing_events/{room_id}",
        Resident._get_missing_events,
    ),
    "backfill": ("GET", _V1 + "/backfill/{room_id}", Resident._backfill),
    "send": ("PUT", _V1 + "/send/{transaction_id}", Resident._receive),
    "keys": ("GET", "/_matrix/key/v2/server", Resident._server_keys),
    "key": ("GET", "/_matrix/key/v2/server/{key_id}", Resident._server_keys),
    "query_keys": ("POST", "/_matrix/key/v2/query", Resident._query_keys),
    "query_key": ("GET", "/_matrix/key/v2/query/{server_name}", Resident._query_keys),
    "version": ("GET", _V1 + "/version", Resident._version),
}
_PUBLIC = frozenset({"keys", "key", "query_keys", "query_key", "version", "unknown"})

ENDPOINTS = tuple(_ROUTES)
"""The endpoints by the names that fault plans and request logs use."""
