"""Jobs: what is known of the resync of each room that was ever partially joined here.

A job outlives the partial state of its room, and never gives up: it says when the next attempt
is due. Times in ms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, delete, func, or_, select, text, update

from storage import bulk
from storage.leases import DEFAULT_TTL_MS, LOCK_NAME, Lease, holders
from storage.schema import (
    partial_state_events,
    partial_state_rooms,
    partial_state_rooms_servers,
    resync_jobs,
    worker_locks,
)

JobState = Literal["queued", "running", "backoff", "complete"]


class GivenUp(NamedTuple):
    """Something that no server delivered, and why."""

    event_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Job:
    """A room's resync as it is shown to people.

    Attributes:
        state: "complete", "running" (some instance has the lease), "backoff" (it waits for
            `next_attempt_ts`) or "queued".
        partial_events: events left with partial state.
        servers: servers that the room had according to the join.
        attempts: failed attempts since the last success.
        phase, done, total: what it is doing and how far it is; `total` is None while unknown.
        running_on: the instance that has the lease.
    """

    room_id: str
    state: JobState
    room_version: str | None
    joined_via: str | None
    join_event_id: str | None
    partial_events: int
    servers: int
    attempts: int
    next_attempt_ts: int
    last_error: str | None
    last_error_server: str | None
    phase: str | None
    done: int
    total: int | None
    given_up: tuple[GivenUp, ...]
    created_ts: int
    updated_ts: int
    completed_ts: int | None
    running_on: str | None


class JobPage(NamedTuple):
    """Some jobs, and where to go on; `next_token` is None on the last page."""

    jobs: list[Job]
    next_token: str | None


def create_job(connection: Connection, room_id: str, *, now_ms: int) -> None:
    """Begin the job of a room that has just become partially stated, due at once.

    The room that was partially joined before, and left or completed, begins again. A job that is
    under way, because another user joins the room, goes on as it is.
    """
    _create_jobs(
        connection, "partial_state_rooms.room_id = :room_id", {"room_id": room_id, "now_ms": now_ms}
    )


def create_missing_jobs(connection: Connection, *, now_ms: int) -> int:
    """Begin a job for each partially stated room without one; returns how many.

    Such rooms come from a Synapse that shares the database.
    """
    return _create_jobs(
        connection,
        "NOT EXISTS (SELECT 1 FROM resync_jobs jobs"
        " WHERE jobs.room_id = partial_state_rooms.room_id AND jobs.completed_ts IS NULL)",
        {"now_ms": now_ms},
    )


def delete_job(connection: Connection, room_id: str) -> None:
    """Forget the job of a room that was abandoned or purged."""
    connection.execute(delete(resync_jobs).where(resync_jobs.c.room_id == room_id))


def record_progress(
    connection: Connection,
    room_id: str,
    *,
    now_ms: int,
    phase: str,
    done: int,
    total: int | None,
) -> None:
    """Note what the resync is doing and how far it is."""
    _update(connection, room_id, now_ms, phase=phase, done=done, total=total)


def record_failure(
    connection: Connection,
    room_id: str,
    *,
    now_ms: int,
    next_attempt_ts: int,
    error: str,
    server: str | None = None,
) -> None:
    """Note that an attempt failed, at which server if at one, and when the next is due."""
    _update(
        connection,
        room_id,
        now_ms,
        attempts=resync_jobs.c.attempts + 1,
        next_attempt_ts=next_attempt_ts,
        last_error=_shown(error),
        last_error_server=None if server is None else _shown(server),
    )


class PatientAttempts(NamedTuple):
    """How many attempts have failed for what a later one may have.

    Attributes:
        uncheckable: for events that may pass the checks later.
        unknown_parents: for parents that no server knew.
    """

    uncheckable: int
    unknown_parents: int


def add_patient_attempts(connection: Connection, room_id: str, failed: PatientAttempts) -> None:
    """Note attempts that failed so."""
    connection.execute(
        update(resync_jobs)
        .where(resync_jobs.c.room_id == room_id)
        .values(
            uncheckable_attempts=resync_jobs.c.uncheckable_attempts + failed.uncheckable,
            unknown_parent_attempts=resync_jobs.c.unknown_parent_attempts + failed.unknown_parents,
        )
    )


def load_patient_attempts(connection: Connection, room_id: str) -> PatientAttempts:
    """What `add_patient_attempts` has noted."""
    query = select(resync_jobs.c.uncheckable_attempts, resync_jobs.c.unknown_parent_attempts).where(
        resync_jobs.c.room_id == room_id
    )
    row = connection.execute(query).one_or_none()
    return PatientAttempts(0, 0) if row is None else PatientAttempts(*row)


def record_given_up(connection: Connection, room_id: str, given_up: Mapping[str, str]) -> None:
    """Note what no server delivered, as event id to reason, beside what was noted before."""
    if not given_up:
        return
    before = connection.scalar(
        select(resync_jobs.c.given_up).where(resync_jobs.c.room_id == room_id).with_for_update()
    )
    if before is None:
        return
    noted = dict(before) | dict(given_up)
    shown = [[_shown(event_id), _shown(reason)] for event_id, reason in noted.items()]
    connection.execute(
        update(resync_jobs).where(resync_jobs.c.room_id == room_id).values(given_up=shown)
    )


def record_complete(connection: Connection, room_id: str, *, now_ms: int) -> None:
    """Note that the room is fully stated."""
    _update(
        connection,
        room_id,
        now_ms,
        completed_ts=now_ms,
        attempts=0,
        last_error=None,
        last_error_server=None,
        phase=None,
    )


def trigger(connection: Connection, room_id: str, *, now_ms: int) -> bool:
    """Make the next attempt due now; False: there is no job, or it is complete."""
    updated = connection.execute(
        update(resync_jobs)
        .where(resync_jobs.c.room_id == room_id, resync_jobs.c.completed_ts.is_(None))
        .values(
            # What is due already keeps its place in the queue.
            next_attempt_ts=func.min(resync_jobs.c.next_attempt_ts, now_ms)
            if connection.dialect.name == "sqlite"
            else func.least(resync_jobs.c.next_attempt_ts, now_ms),
            updated_ts=now_ms,
        )
    )
    return updated.rowcount == 1


def load_due_rooms(
    connection: Connection, *, now_ms: int, limit: int, lease_ttl_ms: int = DEFAULT_TTL_MS
) -> list[str]:
    """Rooms whose next attempt is due and that no live lease covers, longest due first."""
    lease_is_live = and_(
        worker_locks.c.lock_name == LOCK_NAME,
        worker_locks.c.lock_key == resync_jobs.c.room_id,
        worker_locks.c.last_renewed_ts >= now_ms - lease_ttl_ms,
    )
    return list(
        connection.scalars(
            select(resync_jobs.c.room_id)
            .join(partial_state_rooms, partial_state_rooms.c.room_id == resync_jobs.c.room_id)
            .where(
                resync_jobs.c.completed_ts.is_(None),
                resync_jobs.c.next_attempt_ts <= now_ms,
                ~select(worker_locks.c.lock_key).where(lease_is_live).exists(),
            )
            .order_by(resync_jobs.c.next_attempt_ts, resync_jobs.c.room_id)
            .limit(limit)
        )
    )


def next_attempt_ts(connection: Connection) -> int | None:
    """When the next attempt of any room is due; None when no room is left to do."""
    earliest: int | None = connection.scalar(
        select(func.min(resync_jobs.c.next_attempt_ts))
        .join(partial_state_rooms, partial_state_rooms.c.room_id == resync_jobs.c.room_id)
        .where(resync_jobs.c.completed_ts.is_(None))
    )
    return earliest


def count_jobs(
    connection: Connection, *, now_ms: int, lease_ttl_ms: int = DEFAULT_TTL_MS
) -> dict[JobState, int]:
    """How many jobs there are in each state."""
    counts: dict[JobState, int] = {"queued": 0, "running": 0, "backoff": 0, "complete": 0}
    rows = connection.execute(
        select(resync_jobs.c.room_id, resync_jobs.c.next_attempt_ts).where(
            resync_jobs.c.completed_ts.is_(None)
        )
    ).all()
    running = holders(connection, [row.room_id for row in rows], now_ms, lease_ttl_ms)
    for row in rows:
        counts[_state(None, row.room_id in running, row.next_attempt_ts, now_ms)] += 1
    counts["complete"] = (
        connection.scalar(
            select(func.count())
            .select_from(resync_jobs)
            .where(resync_jobs.c.completed_ts.is_not(None))
        )
        or 0
    )
    return counts


def list_rooms(
    connection: Connection,
    now_ms: int,
    from_token: str | None = None,
    limit: int = 100,
    lease_ttl_ms: int = DEFAULT_TTL_MS,
) -> JobPage:
    """A page of jobs, oldest first, in a fixed number of queries.

    Args:
        from_token: `next_token` of the page before; None for the first page.

    Raises:
        ValueError: `from_token` is not one of ours.
    """
    table = resync_jobs
    query = _select_jobs().order_by(table.c.created_ts, table.c.room_id).limit(limit + 1)
    if from_token is not None:
        created_ts, room_id = _parse_token(from_token)
        query = query.where(
            or_(
                table.c.created_ts > created_ts,
                and_(table.c.created_ts == created_ts, table.c.room_id > room_id),
            )
        )
    rows = connection.execute(query).all()
    page = rows[:limit]
    next_token = None
    if len(rows) > limit and page:
        next_token = f"{page[-1].created_ts}_{page[-1].room_id}"
    return JobPage(_jobs(connection, page, now_ms, lease_ttl_ms), next_token)


def load_room(
    connection: Connection, room_id: str, now_ms: int, lease_ttl_ms: int = DEFAULT_TTL_MS
) -> Job | None:
    """The job of a room; None when it was never partially joined here."""
    if not bulk.is_storable(room_id):
        return None
    rows = connection.execute(_select_jobs().where(resync_jobs.c.room_id == room_id)).all()
    jobs = _jobs(connection, rows, now_ms, lease_ttl_ms)
    return jobs[0] if jobs else None


def _create_jobs(connection: Connection, condition: str, parameters: Mapping[str, Any]) -> int:
    created = connection.execute(
        text(
            "INSERT INTO resync_jobs (room_id, room_version, joined_via, join_event_id,"
            " created_ts, updated_ts, next_attempt_ts)"
            " SELECT partial_state_rooms.room_id, rooms.room_version,"
            " partial_state_rooms.joined_via, partial_state_rooms.join_event_id,"
            " :now_ms, :now_ms, :now_ms"
            " FROM partial_state_rooms JOIN rooms ON rooms.room_id = partial_state_rooms.room_id"
            f" WHERE {condition}"
            " ON CONFLICT (room_id) DO UPDATE SET room_version = excluded.room_version,"
            " joined_via = excluded.joined_via, join_event_id = excluded.join_event_id,"
            " created_ts = excluded.created_ts, updated_ts = excluded.updated_ts,"
            " completed_ts = NULL, attempts = 0, next_attempt_ts = excluded.next_attempt_ts,"
            " last_error = NULL, last_error_server = NULL, phase = NULL, done = 0, total = NULL,"
            " given_up = '[]', uncheckable_attempts = 0, unknown_parent_attempts = 0"
            " WHERE resync_jobs.completed_ts IS NOT NULL"
        ),
        dict(parameters),
    )
    return created.rowcount


def _update(connection: Connection, room_id: str, now_ms: int, **values: Any) -> None:
    connection.execute(
        update(resync_jobs)
        .where(resync_jobs.c.room_id == room_id)
        .values(updated_ts=now_ms, **values)
    )


def _select_jobs() -> Select[Any]:
    return select(*resync_jobs.c, partial_state_rooms.c.room_id.label("partial_room_id")).outerjoin(
        partial_state_rooms, partial_state_rooms.c.room_id == resync_jobs.c.room_id
    )


def _jobs(
    connection: Connection, rows: Collection[Row[Any]], now_ms: int, lease_ttl_ms: int
) -> list[Job]:
    room_ids = [row.room_id for row in rows]
    events = _count(connection, partial_state_events.c.room_id, room_ids)
    servers = _count(connection, partial_state_rooms_servers.c.room_id, room_ids)
    leases = holders(connection, room_ids, now_ms, lease_ttl_ms)
    return [
        _job(row, events.get(row.room_id, 0), servers.get(row.room_id, 0), leases, now_ms)
        for row in rows
    ]


def _count(connection: Connection, column: Any, room_ids: Collection[str]) -> dict[str, int]:
    rows = connection.execute(
        select(column, func.count())
        .where(bulk.is_in(connection, column, room_ids))
        .group_by(column)
    )
    return {row[0]: row[1] for row in rows}


def _job(
    row: Row[Any], partial_events: int, servers: int, leases: Mapping[str, Lease], now_ms: int
) -> Job:
    lease = leases.get(row.room_id) if row.completed_ts is None else None
    return Job(
        room_id=row.room_id,
        state=_state(row.completed_ts, lease is not None, row.next_attempt_ts, now_ms),
        room_version=row.room_version,
        joined_via=row.joined_via,
        join_event_id=row.join_event_id,
        partial_events=partial_events,
        servers=servers,
        attempts=row.attempts,
        next_attempt_ts=row.next_attempt_ts,
        last_error=row.last_error,
        last_error_server=row.last_error_server,
        phase=row.phase,
        done=row.done,
        total=row.total,
        given_up=tuple(GivenUp(event_id, reason) for event_id, reason in row.given_up),
        created_ts=row.created_ts,
        updated_ts=row.updated_ts,
        completed_ts=row.completed_ts,
        running_on=None if lease is None else lease.instance_name,
    )


def _state(
    completed_ts: int | None, has_lease: bool, next_attempt_ts: int, now_ms: int
) -> JobState:
    if completed_ts is not None:
        return "complete"
    if has_lease:
        return "running"
    return "backoff" if next_attempt_ts > now_ms else "queued"


def _parse_token(token: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,15})_(![^\0]{1,254})", token)
    if match is None or not bulk.is_storable(match[2]):
        raise ValueError(f"{token!r} is not a token of this list")
    return int(match[1]), match[2]


def _shown(value: str) -> str:
    """Text from a stranger as a text column can hold it."""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()
