"""What is said about a room in `resync status --json` and in the admin API."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from storage.jobs import Job


class TriggerResult(StrEnum):
    """What became of the wish to resync a room now."""

    QUEUED = "queued"
    UNKNOWN_ROOM = "unknown room"
    NOT_PARTIAL = "not partial"


def job_to_json(job: Job) -> dict[str, Any]:
    """A room as a JSON object. Times are milliseconds since the epoch."""
    return {
        "room_id": job.room_id,
        "state": job.state,
        "room_version": job.room_version,
        "joined_via": job.joined_via,
        "join_event_id": job.join_event_id,
        "partial_events": job.partial_events,
        "servers": job.servers,
        "phase": job.phase,
        "done": job.done,
        "total": job.total,
        "worker": job.running_on,
        "attempts": job.attempts,
        "next_attempt_ts": None if job.state == "complete" else job.next_attempt_ts,
        "last_error": job.last_error,
        "last_error_server": job.last_error_server,
        "created_ts": job.created_ts,
        "updated_ts": job.updated_ts,
        "completed_ts": job.completed_ts,
        "given_up": [{"event_id": one.event_id, "reason": one.reason} for one in job.given_up],
    }
