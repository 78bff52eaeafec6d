"""When to ask each remote server again: `destinations`, shared with Synapse where there is one."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, or_, select, text, update

from storage import bulk
from storage.schema import destinations

MIN_RETRY_INTERVAL_MS = 10_000
"""Pause after the first failure."""

MAX_RETRY_INTERVAL_MS = 3_600_000
"""Longest pause: a room waits for its servers, so they are asked every hour at least."""

RETRY_MULTIPLIER = 2.0


class RetrySchedule(NamedTuple):
    """The schedule of a server that is failing; times in ms."""

    failing_since_ts: int | None
    last_attempt_ts: int
    retry_interval_ms: int

    @property
    def next_attempt_ts(self) -> int:
        """When it may be asked again."""
        return self.last_attempt_ts + self.retry_interval_ms


def load_retry_schedules(
    connection: Connection, servers: Collection[str]
) -> dict[str, RetrySchedule]:
    """The schedules of those of `servers` that failed when they were last asked."""
    rows = connection.execute(
        select(
            destinations.c.destination,
            destinations.c.failure_ts,
            destinations.c.retry_last_ts,
            destinations.c.retry_interval,
        ).where(
            bulk.is_in(connection, destinations.c.destination, servers),
            destinations.c.retry_interval > 0,
        )
    )
    return {
        server: RetrySchedule(failure_ts, retry_last_ts or 0, retry_interval)
        for server, failure_ts, retry_last_ts, retry_interval in rows
    }


def load_retry_times(connection: Connection, servers: Collection[str]) -> dict[str, int]:
    """When those of `servers` that failed when they were last asked may be asked again, in ms."""
    schedules = load_retry_schedules(connection, servers)
    return {server: schedule.next_attempt_ts for server, schedule in schedules.items()}


def record_failure(connection: Connection, server: str, *, now_ms: int) -> RetrySchedule:
    """Note that `server` failed, and say when to ask it again.

    The pause doubles with each failure, with jitter, up to a maximum. A failure while it still
    lasts, of a request that was under way, does not make it longer.
    """
    before = load_retry_schedules(connection, [server]).get(server)
    if before is not None and now_ms < before.next_attempt_ts:
        return before
    if before is None:
        interval = MIN_RETRY_INTERVAL_MS
    else:
        interval = round(before.retry_interval_ms * RETRY_MULTIPLIER * random.uniform(0.8, 1.2))
        # Synapse's own schedule, in the same table, reaches further than ours.
        longest = max(MAX_RETRY_INTERVAL_MS, before.retry_interval_ms)
        interval = min(interval, longest)
    since = now_ms if before is None else before.failing_since_ts
    connection.execute(
        text(
            "INSERT INTO destinations (destination, failure_ts, retry_last_ts, retry_interval)"
            " VALUES (:server, :since, :now_ms, :interval)"
            " ON CONFLICT (destination) DO UPDATE SET"
            " failure_ts = coalesce(destinations.failure_ts, excluded.failure_ts),"
            " retry_last_ts = excluded.retry_last_ts, retry_interval = excluded.retry_interval"
        ),
        {"server": server, "since": since, "now_ms": now_ms, "interval": interval},
    )
    return RetrySchedule(since, now_ms, interval)


def record_success(connection: Connection, server: str) -> None:
    """Note that `server` answered: it may be asked at any time."""
    connection.execute(
        update(destinations)
        .where(
            destinations.c.destination == server,
            or_(destinations.c.retry_interval != 0, destinations.c.failure_ts.is_not(None)),
        )
        .values(retry_last_ts=0, retry_interval=0, failure_ts=None)
    )
