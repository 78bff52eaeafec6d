"""Synapse's events stream, read from its tables."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, insert, text

from storage.database import Database
from storage.schema import (
    current_state_delta_stream,
    events,
    redactions,
    rejections,
    room_memberships,
    state_events,
)
from storage.stream_events import load_event_rows

ROOM = "!room:example.com"


def write_event(
    connection: Connection, ordering: int, kind: str, writer: str = "master", **more: str
) -> str:
    event_id = f"${ordering}"
    connection.execute(
        insert(events).values(
            topological_ordering=ordering,
            stream_ordering=ordering,
            event_id=event_id,
            type=kind,
            room_id=ROOM,
            processed=True,
            outlier="outlier" in more,
            depth=ordering,
            instance_name=writer,
        )
    )
    if "state_key" in more:
        connection.execute(
            insert(state_events).values(
                event_id=event_id, room_id=ROOM, type=kind, state_key=more["state_key"]
            )
        )
    if "membership" in more:
        connection.execute(
            insert(room_memberships).values(
                event_id=event_id,
                room_id=ROOM,
                user_id=more["state_key"],
                sender=more["state_key"],
                membership=more["membership"],
                event_stream_ordering=ordering,
            )
        )
    if "redacts" in more:
        connection.execute(insert(redactions).values(event_id=event_id, redacts=more["redacts"]))
    if "rejected" in more:
        connection.execute(insert(rejections).values(event_id=event_id, reason="x", last_check="0"))
    return event_id


def write_delta(connection: Connection, stream_id: int, state_key: str) -> None:
    connection.execute(
        insert(current_state_delta_stream).values(
            stream_id=stream_id,
            room_id=ROOM,
            type="m.room.member",
            state_key=state_key,
            event_id=f"${stream_id}",
            instance_name="master",
        )
    )


def fill(connection: Connection) -> None:
    write_event(connection, 2, "m.room.member", state_key="@a:b", membership="join")
    write_delta(connection, 2, "@a:b")
    write_event(connection, 3, "m.room.message", writer="another")
    write_event(connection, 4, "m.room.redaction", redacts="$2", outlier="yes")
    write_event(connection, 5, "m.room.message", rejected="yes")
    for number in range(4):
        write_delta(connection, 5, f"@{number}:b")
    write_event(connection, 6, "m.room.message")


ROWS = [
    (2, "ev", ("$2", ROOM, "m.room.member", "@a:b", None, None, "join", False, False)),
    (2, "state", (ROOM, "m.room.member", "@a:b", "$2")),
    (4, "ev", ("$4", ROOM, "m.room.redaction", None, "$2", None, None, False, True)),
    (5, "ev", ("$5", ROOM, "m.room.message", None, None, None, None, True, False)),
    *[(5, "state", (ROOM, "m.room.member", f"@{n}:b", "$5")) for n in range(4)],
    (6, "ev", ("$6", ROOM, "m.room.message", None, None, None, None, False, False)),
]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_rows_of_all_kinds_come_in_order(database: Database, limit: int) -> None:
    await database.run(fill)
    after, found = 1, []
    while after < 9:
        batch = await database.read(load_event_rows, "master", after, 9, limit)
        assert batch.limited == (batch.upto < 9)
        assert batch.upto > after
        assert all(after < row.stream_id <= batch.upto for row in batch.rows)
        found += [(row.stream_id, *row.values) for row in batch.rows]
        after = batch.upto
    assert [(i, kind, *values) for i, kind, values in found] == [
        (i, kind, *values) for i, kind, values in ROWS
    ]


async def test_former_outliers_and_relations_come_from_synapses_tables(
    database: Database,
) -> None:
    def add_synapses_tables(connection: Connection) -> None:
        fill(connection)
        connection.execute(
            text("CREATE TABLE event_relations (event_id TEXT NOT NULL, relates_to_id TEXT)")
        )
        connection.execute(text("INSERT INTO event_relations VALUES ('$6', '$5')"))
        connection.execute(
            text(
                "CREATE TABLE ex_outlier_stream (event_stream_ordering BIGINT NOT NULL,"
                " event_id TEXT NOT NULL, state_group BIGINT NOT NULL, instance_name TEXT)"
            )
        )
        connection.execute(text("INSERT INTO ex_outlier_stream VALUES (7, '$4', 1, 'master')"))
        connection.execute(text("INSERT INTO ex_outlier_stream VALUES (8, '$3', 1, 'another')"))

    await database.run(add_synapses_tables)
    batch = await database.read(load_event_rows, "master", 5, 9, 100)
    assert [(row.stream_id, row.values[1][0], row.values[1][5]) for row in batch.rows] == [
        (6, "$6", "$5"),
        (7, "$4", None),
    ]
