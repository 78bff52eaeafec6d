"""When servers are asked again."""

from __future__ import annotations

import itertools

from sqlalchemy import Connection, text

from storage import destinations
from storage.database import Database
from storage.destinations import MAX_RETRY_INTERVAL_MS, MIN_RETRY_INTERVAL_MS


async def test_pauses_grow_up_to_a_maximum(database: Database) -> None:
    now = 1_000_000
    pauses = []
    for _ in range(20):
        schedule = await database.run(destinations.record_failure, "a.org", now_ms=now)
        assert schedule.failing_since_ts == 1_000_000
        assert schedule.last_attempt_ts == now
        pauses.append(schedule.retry_interval_ms)
        now = schedule.next_attempt_ts
    assert pauses[0] == MIN_RETRY_INTERVAL_MS
    assert all(1.5 <= b / a <= 2.5 for a, b in itertools.pairwise(pauses[:8]))
    assert pauses[-1] == MAX_RETRY_INTERVAL_MS
    times = await database.run(destinations.load_retry_times, ["a.org", "b.org", "\0"])
    assert times == {"a.org": now}


async def test_failures_during_a_pause_do_not_make_it_longer(database: Database) -> None:
    first = await database.run(destinations.record_failure, "a.org", now_ms=1000)
    assert await database.run(destinations.record_failure, "a.org", now_ms=1001) == first


async def test_success_ends_it(database: Database) -> None:
    await database.run(destinations.record_failure, "a.org", now_ms=1000)
    await database.run(destinations.record_success, "a.org")
    await database.run(destinations.record_success, "never.seen")
    assert await database.run(destinations.load_retry_times, ["a.org"]) == {}
    again = await database.run(destinations.record_failure, "a.org", now_ms=9000)
    assert again == (9000, 9000, MIN_RETRY_INTERVAL_MS)

    def rows(connection: Connection) -> int:
        return connection.execute(text("SELECT count(*) FROM destinations")).scalar_one()

    assert await database.run(rows) == 1


async def test_a_longer_schedule_of_synapse_is_kept(database: Database) -> None:
    day = 86_400_000

    def write(connection: Connection) -> None:
        connection.execute(
            text(
                "INSERT INTO destinations (destination, failure_ts, retry_last_ts, retry_interval)"
                f" VALUES ('a.org', 5, 10, {day})"
            )
        )

    await database.run(write)
    after = await database.run(destinations.record_failure, "a.org", now_ms=20 + day)
    assert after == (5, 20 + day, day)
