"""The admin HTTP listener: rooms, resync on demand, joins and leaves, health, metrics, status page.

Errors have the shape of the Matrix APIs: `{"errcode", "error"}`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from aiohttp import web

from federation.errors import FederationError, InvalidIdentifier
from federation.identifiers import check_room_id, check_user_id
from resync.admin.errors import AdminError, bad_json, invalid_parameter, unknown_room
from resync.admin.health import Health
from resync.admin.metrics import CONTENT_TYPE, Metrics
from resync.admin.page import add_page_routes
from resync.admin.token import token_matches
from resync.errors import ResyncError
from resync.join_request import InvalidJoinRequest, check_join_request
from resync.status import TriggerResult, job_to_json
from storage.errors import StorageError
from storage.jobs import Job, JobPage, JobState

MAX_BODY_BYTES = 64 * 1024
MAX_WAIT_SECONDS = 300.0
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
_BODY_TIMEOUT_SECONDS = 10.0
_API = "/_resync/admin/v1"

logger = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Joined(Protocol):
    """What is known of a join that was made."""

    @property
    def room_id(self) -> str: ...
    @property
    def join_event_id(self) -> str: ...
    @property
    def partial(self) -> bool: ...
    @property
    def state_events(self) -> int: ...
    @property
    def servers(self) -> int: ...


Join = Callable[[str, Sequence[str], str], Awaitable[Joined]]
"""Joins a room with partial state: room id, servers to join through, user id.

Raises ResyncError or FederationError.
"""


class Left(Protocol):
    """The event by which a user left."""

    @property
    def event_id(self) -> str: ...


Leave = Callable[[str, str], Awaitable[Left]]
"""Lets a local user leave: room id, user id. Raises ResyncError if the user is not in the room."""

Purge = Callable[[str], Awaitable[bool]]
"""Deletes everything that is known of a room; False: nothing was."""


class RoomService(Protocol):
    """What the API asks about rooms. A worker and a test answer from the same database."""

    async def list_rooms(self, from_token: str | None, limit: int) -> JobPage:
        """A page of rooms. Raises ValueError if the token is none of ours."""

    async def load_room(self, room_id: str) -> Job | None:
        """One room, None if it was never partially joined here."""

    async def wait_for_room(self, room_id: str, seconds: float) -> Job | None:
        """The room once it is fully stated, or as it is after `seconds`."""

    async def trigger(self, room_id: str) -> TriggerResult:
        """Forget the backoff of a room."""

    async def count_by_state(self) -> Mapping[JobState, int]:
        """How many rooms there are in each state. Raises StorageError."""


class AdminApi:
    """The handlers. `build_app` puts them on a listener."""

    def __init__(
        self,
        rooms: RoomService,
        *,
        join: Join,
        leave: Leave,
        purge: Purge,
        server_name: str,
        token: str,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._rooms = rooms
        self._make_join = join
        self._make_leave = leave
        self._purge_room = purge
        self._server_name = server_name
        self._token = token
        self._metrics = metrics
        self._health = health

    def build_app(self) -> web.Application:
        """The aiohttp application with every route."""
        app = web.Application(
            middlewares=[self._count, _answer_errors, self._authenticate],
            client_max_size=MAX_BODY_BYTES,
        )
        app.router.add_get("/health", self._get_health)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get(f"{_API}/rooms", self._list_rooms)
        app.router.add_get(f"{_API}/rooms/{{room_id}}", self._get_room)
        app.router.add_post(f"{_API}/rooms/{{room_id}}/resync", self._trigger)
        app.router.add_post(f"{_API}/join", self._join)
        app.router.add_post(f"{_API}/leave", self._leave)
        app.router.add_delete(f"{_API}/rooms/{{room_id}}", self._purge)
        add_page_routes(app)
        app.on_response_prepare.append(_set_security_headers)
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        # The route and never the path: a stranger must not be able to add label values.
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if resource is not None else "any"
        self._metrics.admin_request(method, route, response.status)
        return response

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_resync/"):
            self._check_token(request.headers.get("Authorization"))
        return await handler(request)

    def _check_token(self, header: str | None) -> None:
        scheme, _, given = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise AdminError(
                401, "M_MISSING_TOKEN", "an Authorization header with a bearer token is needed"
            )
        if not token_matches(given.strip(), self._token):
            raise AdminError(401, "M_UNKNOWN_TOKEN", "this is not the token of the admin API")

    async def _get_health(self, request: web.Request) -> web.Response:
        report = self._health.report()
        return web.json_response(
            {"status": "ok" if report.healthy else "failing", "problems": report.problems},
            status=200 if report.healthy else 503,
        )

    async def _get_metrics(self, request: web.Request) -> web.Response:
        try:
            self._metrics.rooms_by_state(await self._rooms.count_by_state())
        except StorageError as error:
            # The other figures are wanted most of all when the database is away.
            logger.warning("cannot count the rooms for the metrics", error=str(error))
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_rooms(self, request: web.Request) -> web.Response:
        limit = _read_limit(request.query.get("limit"))
        try:
            page = await self._rooms.list_rooms(request.query.get("from"), limit)
        except ValueError as error:
            raise invalid_parameter(f"from: {error}") from error
        body: dict[str, Any] = {"rooms": [job_to_json(job) for job in page.jobs]}
        if page.next_token is not None:
            body["next_token"] = page.next_token
        return web.json_response(body)

    async def _get_room(self, request: web.Request) -> web.Response:
        room_id = _read_room_id(request)
        wait = request.query.get("wait")
        if wait is None:
            room = await self._rooms.load_room(room_id)
        else:
            room = await self._rooms.wait_for_room(room_id, _read_wait(wait))
        if room is None:
            raise unknown_room(room_id)
        return web.json_response(job_to_json(room))

    async def _trigger(self, request: web.Request) -> web.Response:
        room_id = _read_room_id(request)
        result = await self._rooms.trigger(room_id)
        if result is TriggerResult.UNKNOWN_ROOM:
            raise unknown_room(room_id)
        if result is TriggerResult.NOT_PARTIAL:
            raise AdminError(
                409, "M_UNKNOWN", f"{room_id} is fully stated: there is nothing to resync"
            )
        return web.json_response({"room_id": room_id, "state": "queued"}, status=202)

    async def _join(self, request: web.Request) -> web.Response:
        body = await _read_object(request)
        via = body.get("via")
        if not isinstance(via, list) or not all(isinstance(name, str) for name in via):
            raise bad_json("via must be a list of server names")
        try:
            wish = check_join_request(
                _read_string(body, "room_id"),
                via,
                _read_string(body, "user_id"),
                server_name=self._server_name,
            )
        except InvalidJoinRequest as error:
            raise invalid_parameter(str(error)) from error
        try:
            joined = await self._make_join(wish.room_id, wish.via, wish.user_id)
        except (FederationError, ResyncError) as error:
            raise AdminError(502, "M_UNKNOWN", f"the join failed: {error}") from error
        return web.json_response(
            {
                "room_id": joined.room_id,
                "join_event_id": joined.join_event_id,
                "partial": joined.partial,
                "state_events": joined.state_events,
                "servers": joined.servers,
            },
            status=202,
        )

    async def _leave(self, request: web.Request) -> web.Response:
        body = await _read_object(request)
        room_id, user_id = _read_string(body, "room_id"), _read_string(body, "user_id")
        try:
            check_room_id(room_id)
            check_user_id(user_id)
        except InvalidIdentifier as error:
            raise invalid_parameter(str(error)) from error
        try:
            left = await self._make_leave(room_id, user_id)
        except ResyncError as error:
            raise AdminError(403, "M_FORBIDDEN", str(error)) from error
        return web.json_response({"room_id": room_id, "event_id": left.event_id})

    async def _purge(self, request: web.Request) -> web.Response:
        room_id = _read_room_id(request)
        if not await self._purge_room(room_id):
            raise unknown_room(room_id)
        return web.json_response({"room_id": room_id})


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever goes wrong into a Matrix error; what we did not foresee is logged in full."""
    try:
        return await handler(request)
    except AdminError as error:
        return error.response()
    except web.HTTPRequestEntityTooLarge:
        message = f"the body is larger than {MAX_BODY_BYTES} bytes"
        return AdminError(413, "M_TOO_LARGE", message).response()
    except web.HTTPNotFound:
        return AdminError(404, "M_UNRECOGNIZED", "there is no such endpoint").response()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = AdminError(
            405, "M_UNRECOGNIZED", f"this endpoint answers to {allowed} only"
        ).response()
        response.headers["Allow"] = allowed
        return response
    except web.HTTPException as error:
        return AdminError(error.status, "M_UNKNOWN", error.reason).response()
    except StorageError as error:
        logger.error("admin request failed", path=request.path, error=str(error))
        return AdminError(503, "M_UNKNOWN", "the database does not answer: see the log").response()
    except Exception:
        logger.exception("admin request failed", method=request.method, path=request.path)
        return AdminError(500, "M_UNKNOWN", "this failed here: the log says why").response()


async def _set_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"


def _read_room_id(request: web.Request) -> str:
    room_id = request.match_info["room_id"]
    try:
        check_room_id(room_id)
    except InvalidIdentifier as error:
        raise invalid_parameter(str(error)) from error
    return room_id


def _read_limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) < 1:
        raise invalid_parameter("limit must be a whole number from 1 on")
    return min(int(text), MAX_LIMIT)


def _read_wait(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:  # also false for NaN
        raise invalid_parameter("wait must be a number of seconds")
    return min(seconds, MAX_WAIT_SECONDS)


async def _read_object(request: web.Request) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise AdminError(408, "M_UNKNOWN", "the body did not arrive in time") from error
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AdminError(400, "M_NOT_JSON", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise bad_json("the body must be an object")
    return value


def _read_string(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise bad_json(f"{key} must be a string")
    return value
