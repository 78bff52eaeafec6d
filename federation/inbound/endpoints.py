"""The federation endpoints that need to know the sender, as aiohttp routes.

What they answer comes from an `InboundHandler`; here requests are authenticated, read and bounded.
Source: server-server API, "Transactions", "Retrieving events", "Backfilling and retrieving missing
events", "Joining Rooms", "Knocking upon a room".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiohttp import web

from federation.canonical_json import parse_json
from federation.errors import InvalidJson
from federation.inbound.authentication import RequestAuthenticator
from federation.inbound.errors import RequestRefused
from federation.inbound.transactions import Transaction, parse_transaction

MAX_MISSING_EVENTS: Final = 20
MAX_BACKFILL: Final = 100
MAX_EVENT_IDS: Final = 100
"""Event ids that one request may name."""
LARGE_BODIES_AT_ONCE: Final = 50
"""Bodies that are read at the same time, beside any number of small ones.

Who sends one is known only when it is there, so nothing but this bounds what they take of memory.
"""
SMALL_BODY_BYTES: Final = 64 * 1024
_BODY_SECONDS: Final = 60.0
_V1: Final = "/_matrix/federation/v1"
_V2: Final = "/_matrix/federation/v2"


class MissingEventsQuery(NamedTuple):
    """What `/get_missing_events` asks for, within our limits."""

    earliest: Sequence[str]
    latest: Sequence[str]
    limit: int
    min_depth: int


class InboundHandler(Protocol):
    """What the endpoints are answered from. Every method may raise RequestRefused."""

    async def receive(self, origin: str, transaction: Transaction) -> str:
        """Takes a transaction; returns the JSON of its answer."""

    async def event(self, origin: str, event_id: str) -> str:
        """The JSON of one event."""

    async def missing_events(
        self, origin: str, room_id: str, query: MissingEventsQuery
    ) -> list[str]:
        """Events between others, as JSON, oldest first."""

    async def backfill(
        self, origin: str, room_id: str, start: Sequence[str], limit: int
    ) -> list[str]:
        """Events and those before them, as JSON, newest first."""

    async def refuse(self, origin: str, room_id: str) -> RequestRefused:
        """Why a request that needs the full state of a room is not answered."""


_Answer = Callable[[web.Request, str, Any], Awaitable[web.Response]]


def inbound_routes(
    server_name: str, authenticator: RequestAuthenticator, handler: InboundHandler
) -> list[web.RouteDef]:
    """The routes to pass to `federation.server.build_app`."""
    large_bodies = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)

    def route(method: str, path: str, answer: _Answer) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            try:
                content = await _read_body(request, large_bodies)
                origin = await authenticator.origin_of(
                    request.headers.get("Authorization", ""),
                    request.method,
                    request.raw_path,
                    content,
                )
                return await answer(request, origin, content)
            except RequestRefused as refusal:
                return refusal.response()

        return web.route(method, path, handle)

    async def send(request: web.Request, origin: str, content: Any) -> web.Response:
        transaction_id = request.match_info["transaction_id"]
        transaction = await asyncio.to_thread(parse_transaction, transaction_id, content, origin)
        return _json(await handler.receive(origin, transaction))

    async def event(request: web.Request, origin: str, content: Any) -> web.Response:
        return _pdus(server_name, [await handler.event(origin, request.match_info["event_id"])])

    async def missing_events(request: web.Request, origin: str, content: Any) -> web.Response:
        query = _missing_events_query(content)
        found = await handler.missing_events(origin, request.match_info["room_id"], query)
        return _json('{"events":[' + ",".join(found) + "]}")

    async def backfill(request: web.Request, origin: str, content: Any) -> web.Response:
        start = request.query.getall("v", [])[:MAX_EVENT_IDS]
        limit = _whole_number(request.query.get("limit", "10"), "limit")
        room_id = request.match_info["room_id"]
        found = await handler.backfill(origin, room_id, start, min(limit, MAX_BACKFILL))
        return _pdus(server_name, found)

    async def refused(request: web.Request, origin: str, content: Any) -> web.Response:
        raise await handler.refuse(origin, request.match_info["room_id"])

    return [
        route("PUT", _V1 + "/send/{transaction_id}", send),
        route("GET", _V1 + "/event/{event_id}", event),
        route("POST", _V1 + "/get_missing_events/{room_id}", missing_events),
        route("GET", _V1 + "/backfill/{room_id}", backfill),
        *(
            route(method, path, refused)
            for method, path in (
                ("GET", _V1 + "/make_join/{room_id}/{user_id}"),
                ("PUT", _V1 + "/send_join/{room_id}/{event_id}"),
                ("PUT", _V2 + "/send_join/{room_id}/{event_id}"),
                ("GET", _V1 + "/make_knock/{room_id}/{user_id}"),
                ("PUT", _V1 + "/send_knock/{room_id}/{event_id}"),
                ("GET", _V1 + "/make_leave/{room_id}/{user_id}"),
                ("PUT", _V1 + "/send_leave/{room_id}/{event_id}"),
                ("PUT", _V2 + "/send_leave/{room_id}/{event_id}"),
                ("GET", _V1 + "/state/{room_id}"),
                ("GET", _V1 + "/state_ids/{room_id}"),
                ("GET", _V1 + "/event_auth/{room_id}/{event_id}"),
            )
        ),
    ]


async def _read_body(
    request: web.Request, large_bodies: asyncio.Semaphore
) -> dict[str, Any] | None:
    """The JSON object in the body; None if there is none."""
    size = request.content_length if request.body_exists else 0
    is_large = size is None or size > SMALL_BODY_BYTES
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async with large_bodies if is_large else contextlib.nullcontext():
                body = await request.read()
    except TimeoutError:
        raise RequestRefused(408, "M_UNKNOWN", "The body did not arrive in time") from None
    if not body:
        return None
    try:
        content = await asyncio.to_thread(parse_json, body)
    except InvalidJson as error:
        raise RequestRefused(400, "M_NOT_JSON", str(error)) from None
    if not isinstance(content, dict):
        raise RequestRefused(400, "M_BAD_JSON", "The body is not a JSON object")
    return content


def _missing_events_query(content: Any) -> MissingEventsQuery:
    if not isinstance(content, Mapping):
        raise RequestRefused(400, "M_BAD_JSON", "The body is not a JSON object")
    limit = content.get("limit", 10)
    min_depth = content.get("min_depth", 0)
    if type(limit) is not int or type(min_depth) is not int:
        raise RequestRefused(400, "M_BAD_JSON", "`limit` and `min_depth` are integers")
    return MissingEventsQuery(
        _event_ids(content, "earliest_events"),
        _event_ids(content, "latest_events"),
        max(0, min(limit, MAX_MISSING_EVENTS)),
        min_depth,
    )


def _event_ids(content: Mapping[str, Any], name: str) -> list[str]:
    value = content.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestRefused(400, "M_BAD_JSON", f"`{name}` is not an array of event ids")
    return value[:MAX_EVENT_IDS]


def _whole_number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise RequestRefused(400, "M_INVALID_PARAM", f"`{name}` is not a whole number")
    return int(text)


def _pdus(server_name: str, pdus: Sequence[str]) -> web.Response:
    now_ms = int(time.time() * 1000)
    return _json(
        f'{{"origin":"{server_name}","origin_server_ts":{now_ms},"pdus":[{",".join(pdus)}]}}'
    )


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")
