"""The admin listener on a real socket, over a small service that keeps its rooms in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import pytest

from federation.errors import FederationError
from resync.admin.api import AdminApi
from resync.admin.health import Health
from resync.admin.metrics import Metrics
from resync.errors import ResyncError
from resync.listener import listen
from resync.status import TriggerResult
from storage.errors import DatabaseUnavailable
from storage.jobs import Job, JobPage, JobState

TOKEN = "a-token-for-these-tests"


def make_job(room_id: str, state: JobState = "backoff") -> Job:
    return Job(
        room_id=room_id,
        state=state,
        room_version="10",
        joined_via="hs1",
        join_event_id="$join",
        partial_events=3,
        servers=2,
        phase="walking",
        done=1,
        total=3,
        attempts=1,
        created_ts=1,
        completed_ts=None,
        next_attempt_ts=2,
        last_error="refused",
        last_error_server="hs1",
        running_on=None,
        given_up=(),
        updated_ts=1,
    )


class MemoryRooms:
    """Rooms in memory that are paged, triggered, finished and waited for."""

    def __init__(self) -> None:
        self.rooms: dict[str, Job] = {}
        self.away = False
        self.finished = asyncio.Event()
        self.waiting = asyncio.Event()

    def add(self, room_id: str, state: JobState = "backoff") -> None:
        self.rooms[room_id] = make_job(room_id, state)

    def finish(self, room_id: str) -> None:
        self.rooms[room_id] = dataclasses.replace(self.rooms[room_id], state="complete")
        self.finished.set()

    async def list_rooms(self, from_token: str | None, limit: int) -> JobPage:
        if from_token is not None and from_token not in self.rooms:
            raise ValueError("not a token of this list")
        ids = [one for one in sorted(self.rooms) if from_token is None or one > from_token]
        next_token = ids[limit - 1] if len(ids) > limit else None
        return JobPage([self.rooms[one] for one in ids[:limit]], next_token)

    async def load_room(self, room_id: str) -> Job | None:
        return self.rooms.get(room_id)

    async def wait_for_room(self, room_id: str, seconds: float) -> Job | None:
        self.waiting.set()
        try:
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        except TimeoutError:
            pass
        return self.rooms.get(room_id)

    async def count_by_state(self) -> dict[JobState, int]:
        if self.away:
            raise DatabaseUnavailable("away")
        return Counter(job.state for job in self.rooms.values())

    async def trigger(self, room_id: str) -> TriggerResult:
        if room_id not in self.rooms:
            return TriggerResult.UNKNOWN_ROOM
        if self.rooms[room_id].state == "complete":
            return TriggerResult.NOT_PARTIAL
        self.rooms[room_id] = dataclasses.replace(self.rooms[room_id], state="queued")
        return TriggerResult.QUEUED


@dataclass(frozen=True)
class Joined:
    room_id: str
    join_event_id: str = "$join"
    partial: bool = True
    state_events: int = 7
    servers: int = 2


@dataclass(frozen=True)
class Left:
    event_id: str


@dataclass
class Admin:
    """A running listener: what is behind it, and how to ask it."""

    rooms: MemoryRooms
    health: Health
    metrics: Metrics
    session: aiohttp.ClientSession
    port: int = 0
    joins: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)
    join_error: Exception | None = None
    members: list[tuple[str, str]] = field(default_factory=list)

    async def join(self, room_id: str, via: Sequence[str], user_id: str) -> Joined:
        if self.join_error is not None:
            raise self.join_error
        self.joins.append((room_id, tuple(via), user_id))
        return Joined(room_id)

    async def leave(self, room_id: str, user_id: str) -> Left:
        if (room_id, user_id) not in self.members:
            raise ResyncError(f"{user_id} is not in {room_id}")
        self.members.remove((room_id, user_id))
        return Left("$leave")

    async def purge(self, room_id: str) -> bool:
        return self.rooms.rooms.pop(room_id, None) is not None

    async def ask(self, method: str, path: str, *, token: str | None = TOKEN, **how):
        """Status and decoded body of a request."""
        headers = dict(how.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method, f"http://127.0.0.1:{self.port}{path}", headers=headers, **how
        ) as response:
            return response.status, await response.json()


@pytest.fixture
async def admin():
    async def database_answers() -> None:
        pass

    async with aiohttp.ClientSession() as session:
        admin = Admin(MemoryRooms(), Health(database_answers), Metrics(), session)
        api = AdminApi(
            admin.rooms,
            join=admin.join,
            leave=admin.leave,
            purge=admin.purge,
            server_name="example.com",
            token=TOKEN,
            metrics=admin.metrics,
            health=admin.health,
        )
        async with listen(api.build_app(), "127.0.0.1", 0, setting="admin") as port:
            admin.port = port
            yield admin


@pytest.fixture
def join_failure() -> Exception:
    return FederationError("hs1: 403 M_FORBIDDEN: banned")
