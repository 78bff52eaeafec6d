"""The admin API as a caller: how the command line speaks to a worker that is running."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import yarl

from resync.admin.token import TokenError, read_token
from resync.config import AdminConfig
from resync.errors import ResyncError
from resync.join_request import JoinRequest

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_KNOCK_SECONDS = 2.0
# A resident may need minutes for /send_join of a large room.
_JOIN_SECONDS = 900.0
_CHANGE_SECONDS = 300.0


class JoinAnswer(NamedTuple):
    """What the worker says of a join that it made."""

    room_id: str
    join_event_id: str
    partial: bool
    state_events: int
    servers: int


class WorkerRefused(ResyncError):
    """The running worker answered with an error, or stopped answering."""


class AdminClient:
    """Requests to one running worker."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def join(self, wish: JoinRequest) -> JoinAnswer:
        """Let the worker join the room. Raises `WorkerRefused`."""
        body = {"room_id": wish.room_id, "user_id": wish.user_id, "via": list(wish.via)}
        answer = await self._ask("POST", "join", body, seconds=_JOIN_SECONDS)
        return JoinAnswer(**{name: answer[name] for name in JoinAnswer._fields})

    async def leave(self, room_id: str, user_id: str) -> str:
        """Let a user leave; returns the id of the event. Raises `WorkerRefused`."""
        body = {"room_id": room_id, "user_id": user_id}
        answer = await self._ask("POST", "leave", body, seconds=_CHANGE_SECONDS)
        return str(answer["event_id"])

    async def purge(self, room_id: str) -> None:
        """Let the worker delete a room. Raises `WorkerRefused`."""
        path = "rooms/" + quote(room_id, safe="")
        await self._ask("DELETE", path, None, seconds=_CHANGE_SECONDS)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, *, seconds: float
    ) -> dict[str, Any]:
        # As it is quoted: a room id is one segment, whatever it contains.
        url = yarl.URL("_resync/admin/v1/" + path, encoded=True)
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, url, json=body, timeout=timeout) as response:
                answer: dict[str, Any] = await response.json()
                if response.status not in (200, 202):
                    raise WorkerRefused(str(answer.get("error")))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise WorkerRefused(f"the running worker stopped answering: {error}") from error
        return answer


@asynccontextmanager
async def find_worker(config: AdminConfig | None) -> AsyncIterator[AdminClient | None]:
    """The worker that listens where the config says and takes the token it names; else None."""
    token = _token_of(config)
    if config is None or token is None:
        yield None
        return
    host = _ANY_ADDRESS.get(config.bind, config.bind)
    host = f"[{host}]" if ":" in host else host
    async with aiohttp.ClientSession(
        f"http://{host}:{config.port}/", headers={"Authorization": f"Bearer {token}"}
    ) as session:
        yield AdminClient(session) if await _answers(session) else None


def _token_of(config: AdminConfig | None) -> str | None:
    try:
        # Only a worker makes the token: where there is none, none was ever started.
        return read_token(config.token_path) if config is not None else None
    except TokenError:
        return None


async def _answers(session: aiohttp.ClientSession) -> bool:
    timeout = aiohttp.ClientTimeout(total=_KNOCK_SECONDS)
    try:
        async with session.get("_resync/admin/v1/rooms?limit=1", timeout=timeout) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
