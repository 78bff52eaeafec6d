"""Rooms as text for people: what `resync status` prints without `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from resync.progress import Phase, RoomProgress
from resync.progress_display import printable
from storage.jobs import Job


def describe_rooms(rooms: Sequence[Job], now_ms: int) -> str:
    """All rooms, a few lines each, and a count of them by state."""
    if not rooms:
        return "No room was partially joined here yet.\n"
    lines = [line for room in rooms for line in describe_room(room, now_ms)]
    counts = ", ".join(
        f"{count} {state}"
        for state in ("queued", "running", "backoff", "complete")
        if (count := sum(room.state == state for room in rooms))
    )
    return "\n".join([*lines, "", f"{len(rooms)} rooms: {counts}", ""])


def describe_room(room: Job, now_ms: int) -> list[str]:
    """The room and its state; then, only where there is something to say, one line each."""
    lines = [f"{printable(room.room_id)}  {room.state}{_how_far(room)}"]
    via = f", joined through {printable(room.joined_via)}" if room.joined_via else ""
    lines.append(f"    {room.partial_events} partial events, {room.servers} servers{via}")
    if room.running_on and room.state == "running":
        lines.append(f"    worker: {printable(room.running_on)}")
    if room.state != "complete":
        if room.last_error:
            server = f" at {printable(room.last_error_server)}" if room.last_error_server else ""
            lines.append(f"    last error{server}: {printable(room.last_error)}")
        if room.state == "backoff":
            lines.append(f"    next attempt {_when(room.next_attempt_ts, now_ms)}")
        if room.attempts:
            lines.append(f"    failures in a row: {room.attempts}")
    if room.given_up:
        lines.append(f"    given up, no server could deliver them: {len(room.given_up)} events")
    return lines


def progress_of(room: Job) -> RoomProgress:
    """The room as the progress display shows it."""
    if room.state == "complete":
        return RoomProgress(room.room_id, Phase.DONE, room.done, room.total or 0)
    if room.state == "backoff":
        return RoomProgress(room.room_id, Phase.BACKOFF, detail=room.last_error or "")
    phase = room.phase if room.state == "running" and room.phase else room.state
    return RoomProgress(room.room_id, phase, room.done, room.total or 0)


def _how_far(room: Job) -> str:
    if room.state == "complete":
        if room.completed_ts is None:
            return ""
        return f" after {(room.completed_ts - room.created_ts) / 1000:.1f} s"
    text = f"  {printable(room.phase)}" if room.phase else ""
    if room.total:
        text += f" {room.done}/{room.total} ({100 * room.done // room.total} %)"
    return text


def _when(timestamp_ms: int, now_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    seconds = (timestamp_ms - now_ms) // 1000
    if seconds <= 0:
        return "now"
    if seconds < 120:
        return f"in {seconds} s ({moment})"
    return f"in {seconds // 60} min ({moment})"
