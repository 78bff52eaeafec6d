"""Partial state: what the schema refuses, and taking rooms out of it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from storage import partial_state
from storage.database import Database
from storage.errors import RoomNotPartial, RoomStillPartial
from storage.partial_state import PartialEvent, PartialRoom


def _rows(connection: Connection, query: str) -> list[tuple]:
    return [tuple(row) for row in connection.execute(text(query))]


async def test_a_partial_room(database: Database, store, event, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        join = tables.partial_room(servers=["b.org", "a.org", "b.org"])
        expected = PartialRoom(room_id, "10", "a.org", join.event_id, 0)
        assert partial_state.load_partial_rooms(connection) == [expected]
        assert partial_state.load_partial_room(connection, room_id) == expected
        assert partial_state.load_partial_room(connection, "!other:room") is None
        assert partial_state.load_partial_servers(connection, room_id) == ["a.org", "b.org"]

        tables.event(event("$next", prev=[join.event_id, "$else"], depth=8))
        partial_state.insert_partial_events(connection, room_id, ["$next"])
        graph = partial_state.load_partial_graph(connection, room_id)
        assert [(e.event_id, e.prev_event_ids, e.depth) for e in graph] == [
            (join.event_id, ("$before",), 1),
            ("$next", ("$else", join.event_id), 8),
        ]
        assert isinstance(graph[0], PartialEvent)
        assert graph[0].stream_ordering < graph[1].stream_ordering
        assert partial_state.count_partial_events(connection, room_id) == 2
        found = partial_state.find_partial_events(connection, ["$next", "$else"])
        assert found == {"$next"}

        # A second user's partial join adds servers and changes nothing else.
        partial_state.insert_partial_room(
            connection, room_id, joined_via="c.org", servers=["c.org", "a.org"], join_event_id=None
        )
        assert partial_state.load_partial_room(connection, room_id) == expected
        servers = partial_state.load_partial_servers(connection, room_id)
        assert servers == ["a.org", "b.org", "c.org"]

    await database.run(check)


async def test_wrong_room_id_is_refused(database: Database, store, event) -> None:
    def write(connection: Connection) -> None:
        tables = store(connection)
        tables.partial_room()
        tables.room("!elsewhere:example.com")
        tables.event(event("$there", room_id="!elsewhere:example.com"))
        partial_state.insert_partial_events(connection, "!room:example.com", ["$there"])

    with pytest.raises(IntegrityError, match="Incorrect room_id in partial_state_events"):
        await database.run(write)


async def test_wrong_room_id_is_refused_in_an_update(database: Database, store) -> None:
    def write(connection: Connection) -> None:
        tables = store(connection)
        tables.partial_room()
        tables.partial_room("!second:example.com")
        connection.execute(
            text(
                "UPDATE partial_state_events SET event_id = '$nowhere'"
                " WHERE room_id = '!second:example.com'"
            )
        )

    def swap(connection: Connection) -> None:
        store(connection).partial_room("!third:example.com")
        store(connection).partial_room("!fourth:example.com")
        connection.execute(
            text(
                "UPDATE partial_state_events SET room_id = '!third:example.com'"
                " WHERE room_id = '!fourth:example.com'"
            )
        )

    with pytest.raises(IntegrityError):
        await database.run(write)
    with pytest.raises(IntegrityError, match="Incorrect room_id in partial_state_events"):
        await database.run(swap)


@pytest.mark.parametrize("event_id", ["$unknown", "$join!room:example.com"])
async def test_partial_events_must_be_stored_and_new(database: Database, store, event_id) -> None:
    def write(connection: Connection) -> None:
        store(connection).partial_room()
        partial_state.insert_partial_events(connection, "!room:example.com", [event_id])

    with pytest.raises(IntegrityError):
        await database.run(write)


async def test_events_and_room_become_fully_stated(
    database: Database, store, event, room_id
) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        join = tables.partial_room()
        tables.event(event("$next", prev=[join.event_id]))
        partial_state.insert_partial_events(connection, room_id, ["$next"])
        partial_state.clear_partial_events(
            connection, room_id, {join.event_id: False, "$next": True}, [4, 5], "worker1"
        )
        assert partial_state.count_partial_events(connection, room_id) == 0
        stream = "SELECT * FROM un_partial_stated_event_stream ORDER BY stream_id"
        assert [(*r[:3], bool(r[3])) for r in _rows(connection, stream)] == [
            (4, "worker1", join.event_id, False),
            (5, "worker1", "$next", True),
        ]
        with pytest.raises(RoomNotPartial):
            partial_state.clear_partial_events(connection, room_id, {"$next": True}, [6], "x")

        partial_state.complete_partial_room(connection, room_id, 9, "worker1")
        assert partial_state.load_partial_room(connection, room_id) is None
        assert partial_state.load_partial_servers(connection, room_id) == []
        rows = _rows(connection, "SELECT * FROM un_partial_stated_room_stream")
        assert rows == [(9, "worker1", room_id)]
        with pytest.raises(RoomNotPartial):
            partial_state.complete_partial_room(connection, room_id, 10, "worker2")

    await database.run(check)


async def test_an_event_that_is_partial_twice_is_announced_twice(
    database: Database, store, room_id
) -> None:
    def check(connection: Connection) -> None:
        join = store(connection).partial_room()
        for stream_id in (2, 7):
            partial_state.clear_partial_events(
                connection, room_id, {join.event_id: False}, [stream_id], "w"
            )
            partial_state.insert_partial_events(connection, room_id, [join.event_id])
        rows = _rows(connection, "SELECT stream_id FROM un_partial_stated_event_stream")
        assert rows == [(7,)]

    await database.run(check)


async def test_a_room_with_a_partial_event_cannot_be_completed(
    database: Database, store, room_id
) -> None:
    await database.run(lambda connection: store(connection).partial_room())
    with pytest.raises(RoomStillPartial, match=room_id):
        await database.run(partial_state.complete_partial_room, room_id, 2, "worker1")
    # Nothing of it was kept.
    assert await database.run(partial_state.load_partial_servers, room_id) == ["a.org"]
    assert await database.run(_rows, "SELECT * FROM un_partial_stated_room_stream") == []


async def test_an_event_that_slips_in_while_the_room_is_completed(
    postgresql_database: Database, store, event, room_id
) -> None:
    """The partial event is inserted first and committed last: the completion waits and fails."""
    inserted, finish = threading.Event(), threading.Event()

    def prepare(connection: Connection) -> None:
        join = store(connection).partial_room()
        store(connection).event(event("$late", prev=[join.event_id]))
        partial_state.clear_partial_events(connection, room_id, {join.event_id: False}, [2], "w")

    def slip_in(connection: Connection) -> None:
        partial_state.insert_partial_events(connection, room_id, ["$late"])
        inserted.set()
        finish.wait(10)

    await postgresql_database.run(prepare)
    late = asyncio.create_task(postgresql_database.run(slip_in))
    await asyncio.to_thread(inserted.wait, 10)
    completion = asyncio.create_task(
        postgresql_database.run(partial_state.complete_partial_room, room_id, 2, "w")
    )
    finish.set()
    await late
    with pytest.raises(RoomStillPartial):
        await completion
    assert await postgresql_database.run(partial_state.count_partial_events, room_id) == 1


async def test_a_room_is_abandoned(database: Database, store, room_id) -> None:
    def check(connection: Connection) -> None:
        store(connection).partial_room()
        partial_state.delete_partial_room(connection, room_id)
        assert partial_state.load_partial_rooms(connection) == []
        assert partial_state.count_partial_events(connection, room_id) == 0
        assert _rows(connection, "SELECT * FROM un_partial_stated_room_stream") == []
        with pytest.raises(RoomNotPartial):
            partial_state.delete_partial_room(connection, room_id)

    await database.run(check)
