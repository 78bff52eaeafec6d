"""What is said about a room in `resync status` and in the admin API, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class RoomState(StrEnum):
    """Where the resync of a room stands."""

    QUEUED = "queued"
    RUNNING = "running"
    BACKOFF = "backoff"
    COMPLETE = "complete"


@dataclass(frozen=True)
class RoomStatus:
    """One room. Timestamps are milliseconds since the epoch; `servers` is how many are known.

    `given_up` lists the events that no server could deliver.
    """

    room_id: str
    state: RoomState
    room_version: str | None
    joined_via: str | None
    join_event_id: str | None
    partial_events: int
    servers: int
    phase: str
    done: int
    total: int | None
    attempts: int
    created_ts: int | None
    completed_ts: int | None
    next_attempt_ts: int | None
    last_error: str | None
    last_error_server: str | None
    worker: str | None
    given_up: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The object in `status --json` and in the admin API's answers."""
        return asdict(self)


class RoomPage(NamedTuple):
    """Some rooms, and the token from which the list goes on (None: that was all)."""

    rooms: list[RoomStatus]
    next_token: str | None


class TriggerResult(StrEnum):
    """What became of the wish to resync a room now."""

    QUEUED = "queued"
    UNKNOWN_ROOM = "unknown room"
    NOT_PARTIAL = "not partial"
