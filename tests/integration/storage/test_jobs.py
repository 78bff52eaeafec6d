"""Jobs: their states, what people see of them, and paging."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, event, text

from storage import jobs, leases, partial_state
from storage.database import Database
from storage.jobs import GivenUp, Job

TTL = 1000


def _job(connection: Connection, room_id: str, now_ms: int) -> Job:
    job = jobs.load_room(connection, room_id, now_ms, TTL)
    assert job is not None
    return job


async def test_the_life_of_a_job(database: Database, store, event, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        join = tables.partial_room(servers=["a.org", "b.org"])
        assert jobs.load_room(connection, room_id, 0) is None
        jobs.create_job(connection, room_id, now_ms=100)
        assert _job(connection, room_id, 100) == Job(
            room_id=room_id,
            state="queued",
            room_version="10",
            joined_via="a.org",
            join_event_id=join.event_id,
            partial_events=1,
            servers=2,
            attempts=0,
            next_attempt_ts=100,
            last_error=None,
            last_error_server=None,
            phase=None,
            done=0,
            total=None,
            given_up=(),
            created_ts=100,
            updated_ts=100,
            completed_ts=None,
            running_on=None,
        )
        assert jobs.load_due_rooms(connection, now_ms=100, limit=5, lease_ttl_ms=TTL) == [room_id]
        assert jobs.load_due_rooms(connection, now_ms=99, limit=5, lease_ttl_ms=TTL) == []
        assert jobs.next_attempt_ts(connection) == 100

        leases.acquire(connection, room_id, "worker1", "token", 110, TTL)
        jobs.record_progress(connection, room_id, now_ms=120, phase="walk", done=3, total=9)
        running = _job(connection, room_id, 120)
        assert (running.state, running.running_on) == ("running", "worker1")
        assert (running.phase, running.done, running.total) == ("walk", 3, 9)
        assert jobs.load_due_rooms(connection, now_ms=120, limit=5, lease_ttl_ms=TTL) == []
        # The worker dies: its lease runs out and the room is due again.
        assert _job(connection, room_id, 2000).state == "queued"
        assert jobs.load_due_rooms(connection, now_ms=2000, limit=5, lease_ttl_ms=TTL) == [room_id]

        leases.release(connection, room_id, "token")
        jobs.record_failure(
            connection,
            room_id,
            now_ms=2000,
            next_attempt_ts=5000,
            error="refused\0 the connection",
            server="a.org",
        )
        waiting = _job(connection, room_id, 2000)
        assert (waiting.state, waiting.attempts, waiting.next_attempt_ts) == ("backoff", 1, 5000)
        assert waiting.last_error == "refused\ufffd the connection"
        assert waiting.last_error_server == "a.org"
        counts = jobs.count_jobs(connection, now_ms=2000)
        assert counts == {"queued": 0, "running": 0, "backoff": 1, "complete": 0}
        assert jobs.next_attempt_ts(connection) == 5000

        assert jobs.trigger(connection, room_id, now_ms=2100)
        assert _job(connection, room_id, 2100).state == "queued"
        assert _job(connection, room_id, 2100).next_attempt_ts == 2100

        jobs.record_given_up(connection, room_id, {})
        jobs.record_given_up(connection, room_id, {"$a": "404", "$b": "gone"})
        jobs.record_given_up(connection, room_id, {"$b": "403"})
        assert _job(connection, room_id, 2100).given_up == (
            GivenUp("$a", "404"),
            GivenUp("$b", "403"),
        )

        partial_state.clear_partial_events(connection, room_id, {join.event_id: False}, [2], "w")
        partial_state.complete_partial_room(connection, room_id, 2, "w")
        jobs.record_complete(connection, room_id, now_ms=3000)
        done = _job(connection, room_id, 3000)
        assert (done.state, done.completed_ts, done.attempts) == ("complete", 3000, 0)
        assert (done.partial_events, done.servers, done.last_error) == (0, 0, None)
        assert (done.joined_via, done.room_version) == ("a.org", "10")
        assert len(done.given_up) == 2
        assert not jobs.trigger(connection, room_id, now_ms=3100)
        assert not jobs.trigger(connection, "!unknown:room", now_ms=3100)
        assert jobs.next_attempt_ts(connection) is None

    await database.run(check)


async def test_a_job_begins_again_with_the_next_partial_join(
    database: Database, store, room_id
) -> None:
    def check(connection: Connection) -> None:
        join = store(connection).partial_room()
        jobs.create_job(connection, room_id, now_ms=100)
        jobs.record_failure(connection, room_id, now_ms=110, next_attempt_ts=500, error="no")
        # Another user joins: nothing is forgotten.
        jobs.create_job(connection, room_id, now_ms=120)
        assert _job(connection, room_id, 120).attempts == 1
        assert _job(connection, room_id, 120).created_ts == 100
        jobs.record_given_up(connection, room_id, {"$a": "404"})
        jobs.record_complete(connection, room_id, now_ms=130)
        jobs.create_job(connection, room_id, now_ms=140)
        again = _job(connection, room_id, 140)
        assert (again.state, again.created_ts, again.given_up) == ("queued", 140, ())
        assert again.join_event_id == join.event_id
        jobs.delete_job(connection, room_id)
        assert jobs.load_room(connection, room_id, 150) is None

    await database.run(check)


async def test_rooms_that_came_without_a_job(database: Database, store) -> None:
    def check(connection: Connection) -> None:
        store(connection).partial_room("!one:x")
        store(connection).partial_room("!two:x")
        jobs.create_job(connection, "!one:x", now_ms=1)
        jobs.record_failure(connection, "!one:x", now_ms=2, next_attempt_ts=9, error="no")
        assert jobs.create_missing_jobs(connection, now_ms=5) == 1
        assert jobs.create_missing_jobs(connection, now_ms=6) == 0
        assert _job(connection, "!one:x", 6).attempts == 1
        assert _job(connection, "!two:x", 6).created_ts == 5

    await database.run(check)


async def test_paging(database: Database, store) -> None:
    room_ids = [f"!{n:02}_:x" for n in range(23)]

    def write(connection: Connection) -> None:
        for n, room_id in enumerate(room_ids):
            store(connection).partial_room(room_id, servers=[f"s{k}.org" for k in range(n)])
            # Several of the same moment, so that the room id has to decide.
            jobs.create_job(connection, room_id, now_ms=100 + n // 4)

    await database.run(write)
    seen: list[Job] = []
    token = None
    pages = 0
    while True:
        page = await database.read(jobs.list_rooms, 500, token, 5)
        seen += page.jobs
        pages += 1
        token = page.next_token
        if token is None:
            break
    assert pages == 5
    assert [job.room_id for job in seen] == room_ids
    assert [job.servers for job in seen] == list(range(23))
    assert {job.partial_events for job in seen} == {1}


@pytest.mark.parametrize("token", ["", "x", "1", "12", "a_!r:x", "1_r", "99999999999999999_!r:x"])
async def test_tokens_from_strangers(database: Database, token: str) -> None:
    with pytest.raises(ValueError, match="not a token"):
        await database.read(jobs.list_rooms, 500, token, 5)


async def test_listing_takes_a_fixed_number_of_queries(database: Database, store) -> None:
    def count_queries(connection: Connection) -> int:
        statements: list[str] = []

        def note(_connection, _cursor, statement, *_rest) -> None:
            statements.append(statement)

        event.listen(connection, "before_cursor_execute", note)
        page = jobs.list_rooms(connection, 500, None, 100)
        event.remove(connection, "before_cursor_execute", note)
        assert all(job.servers == 1 for job in page.jobs)
        return len(statements)

    def add_rooms(connection: Connection, first: int, last: int) -> None:
        for n in range(first, last):
            store(connection).partial_room(f"!{n}:x")
            jobs.create_job(connection, f"!{n}:x", now_ms=100)

    await database.run(add_rooms, 0, 2)
    few = await database.run(count_queries)
    await database.run(add_rooms, 2, 40)
    assert await database.run(count_queries) == few


async def test_what_is_due_keeps_its_order(database: Database, store) -> None:
    def check(connection: Connection) -> list[str]:
        for room_id, due in {"!c:x": 30, "!a:x": 20, "!b:x": 10, "!later:x": 99}.items():
            store(connection).partial_room(room_id)
            jobs.create_job(connection, room_id, now_ms=due)
        # Triggering what is due does not send it to the end of the queue.
        jobs.trigger(connection, "!b:x", now_ms=50)
        # A room that Synapse took out of partial state is nobody's work.
        store(connection).partial_room("!gone:x")
        jobs.create_job(connection, "!gone:x", now_ms=1)
        partial_state.delete_partial_room(connection, "!gone:x")
        connection.execute(text("SELECT 1"))
        return jobs.load_due_rooms(connection, now_ms=50, limit=10)

    assert await database.run(check) == ["!b:x", "!a:x", "!c:x"]
