"""The current state, its changes as a stream, and local memberships."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from federation.events import StateKey
from storage import current_state
from storage.database import Database
from storage.errors import UnknownEvents

TOPIC = StateKey("m.room.topic", "")


def _member(user_id: str) -> StateKey:
    return StateKey("m.room.member", user_id)


def _rows(connection: Connection, query: str) -> list[tuple]:
    return [tuple(row) for row in connection.execute(text(query))]


async def test_only_differences_are_written(
    database: Database, store, event, member, room_id
) -> None:
    def replace(connection: Connection, state: dict, own_server: str | None = None) -> int:
        return current_state.replace_current_state(
            connection, room_id, state, instance_name="w", own_server=own_server
        )

    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.outliers(
            event("$topic1", type="m.room.topic", state_key=""),
            event("$topic2", type="m.room.topic", state_key=""),
            member("$us", "@us:our.server"),
            member("$left", "@us:our.server", "leave"),
            member("$invited", "@second:our.server", "invite"),
            member("$them", "@them:a.org"),
        )
        first = {
            TOPIC: "$topic1",
            _member("@us:our.server"): "$us",
            _member("@them:a.org"): "$them",
        }
        assert replace(connection, first, "our.server") == 3
        assert current_state.load_current_state(connection, room_id) == first
        assert current_state.count_entries(connection, room_id) == 3
        assert current_state.count_members(connection, room_id) == 2
        assert current_state.load_joined_event(connection, room_id, "@us:our.server") == "$us"
        assert current_state.load_joined_event(connection, room_id, "@them:a.org") is None
        assert _rows(
            connection,
            "SELECT c.event_id, c.membership, c.event_stream_ordering = e.stream_ordering"
            " FROM current_state_events c JOIN events e ON e.event_id = c.event_id"
            " ORDER BY c.event_id",
        ) == [("$them", "join", 1), ("$topic1", None, 1), ("$us", "join", 1)]
        assert replace(connection, first) == 0
        assert len(_rows(connection, "SELECT * FROM current_state_delta_stream")) == 3

        second = {
            TOPIC: "$topic2",
            _member("@us:our.server"): "$left",
            _member("@second:our.server"): "$invited",
        }
        # Who is local is known from the first time.
        assert replace(connection, second) == 4
        assert current_state.load_current_state(connection, room_id) == second
        assert current_state.load_local_memberships(connection, room_id) == {
            "@us:our.server": "leave",
            "@second:our.server": "invite",
        }
        streams = _rows(connection, "SELECT DISTINCT stream_id FROM current_state_delta_stream")
        assert len(streams) == 2
        newest = max(streams)[0]
        assert _rows(connection, "SELECT max(stream_ordering) FROM events")[0][0] < newest
        delta = _rows(
            connection,
            "SELECT type, state_key, event_id, prev_event_id, instance_name"
            f" FROM current_state_delta_stream WHERE stream_id = {newest} ORDER BY state_key",
        )
        assert delta == [
            ("m.room.topic", "", "$topic2", "$topic1", "w"),
            ("m.room.member", "@second:our.server", "$invited", None, "w"),
            ("m.room.member", "@them:a.org", None, "$them", "w"),
            ("m.room.member", "@us:our.server", "$left", "$us", "w"),
        ]
        # An event that is stored afterwards comes after the change in the stream.
        tables.outliers(event("$later"))
        assert _rows(connection, "SELECT max(stream_ordering) FROM events")[0][0] > newest

        assert current_state.delete_current_state(connection, room_id, instance_name="w") == 3
        assert current_state.count_entries(connection, room_id) == 0
        memberships = current_state.load_local_memberships(connection, room_id)
        assert memberships["@us:our.server"] == "leave"

    await database.run(check)


async def test_an_event_that_is_no_state_event_is_never_current(
    database: Database, store, event, room_id
) -> None:
    def check(connection: Connection) -> None:
        store(connection).room()
        store(connection).outliers(
            event("$topic", type="m.room.topic", state_key=""), event("$message")
        )
        current_state.replace_current_state(
            connection,
            room_id,
            {TOPIC: "$topic", StateKey("m.room.message", ""): "$message"},
            instance_name="w",
        )

    with pytest.raises(UnknownEvents, match="message"):
        await database.run(check)


async def test_events_of_the_state_must_be_stored(
    database: Database, store, event, room_id
) -> None:
    def check(connection: Connection) -> None:
        store(connection).room()
        store(connection).outliers(event("$elsewhere", room_id="!other:x"))
        current_state.replace_current_state(
            connection, room_id, {TOPIC: "$elsewhere"}, instance_name="w"
        )

    with pytest.raises(UnknownEvents, match="elsewhere"):
        await database.run(check)
