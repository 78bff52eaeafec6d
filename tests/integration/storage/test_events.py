"""Storing and loading events, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from storage import events, state_groups
from storage.database import Database
from storage.errors import RoomVersionUnknown, UnstorableEvent


def _count(connection: Connection, table: str) -> int:
    return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


def _rows(connection: Connection, query: str) -> list[tuple]:
    return [tuple(row) for row in connection.execute(text(query))]


TABLES = ("events", "event_json", "event_auth", "state_events", "room_memberships", "rejections")


async def test_outliers_are_stored_once(database: Database, store, event, member) -> None:
    create = event("$create", type="m.room.create", state_key="", room_version="10")
    joined = member("$join", "@alice:example.com", auth=["$create"])
    rejected = member("$bad", "@eve:example.com", auth=["$create", "$join"])
    message = event("$message", auth=["$create", "$join"], content={"url": "mxc://x/y"})

    def write(connection: Connection) -> set[str]:
        tables = store(connection)
        tables.room()
        return tables.outliers(
            joined, create, rejected, message, joined, rejections={"$bad": "not invited"}
        )

    def again(connection: Connection) -> set[str]:
        return store(connection).outliers(create, member("$new", "@bob:example.com"), rejected)

    def counts(connection: Connection) -> dict[str, int]:
        return {table: _count(connection, table) for table in TABLES}

    assert await database.run(write) == {"$create", "$join", "$bad", "$message"}
    # Four events; auth edges of state events only; no membership of the rejected one.
    expected = {
        "events": 4,
        "event_json": 4,
        "event_auth": 3,
        "state_events": 3,
        "room_memberships": 1,
        "rejections": 1,
    }
    assert await database.run(counts) == expected
    assert await database.run(again) == {"$new"}
    assert await database.run(counts) == expected | {
        "events": 5,
        "event_json": 5,
        "state_events": 4,
        "room_memberships": 2,
    }

    def check(connection: Connection) -> None:
        loaded = events.load_events(connection, ["$join", "$bad", "$message", "$unknown"])
        assert loaded.keys() == {"$join", "$bad", "$message"}
        assert loaded["$join"].event.pdu == joined.pdu
        assert loaded["$join"].event.json == joined.json
        assert loaded["$join"].event.auth_event_ids == ("$create",)
        assert loaded["$join"].rejection_reason is None
        assert loaded["$join"].outlier is True
        assert loaded["$bad"].rejection_reason == "not invited"
        orderings = {stored.stream_ordering for stored in loaded.values()}
        assert len(orderings) == 3
        assert min(orderings) >= 2
        assert events.find_known(connection, ["$join", "$unknown"]) == {"$join"}
        assert events.load_rejections(connection, ["$join", "$bad"]) == {"$bad": "not invited"}
        named = ["$join", "$bad", "$message", "$unknown"]
        assert events.load_state_entries(connection, "!other:example.com", named) == {}
        entries = events.load_state_entries(connection, "!room:example.com", named)
        assert entries == {
            "$join": (("m.room.member", "@alice:example.com"), False),
            "$bad": (("m.room.member", "@eve:example.com"), True),
            "$message": (None, False),
        }
        row = _rows(
            connection,
            "SELECT type, state_key, sender, depth, topological_ordering, origin_server_ts,"
            " received_ts, instance_name, contains_url, rejection_reason FROM events"
            " WHERE event_id IN ('$bad', '$message') ORDER BY event_id",
        )
        assert [tuple(bool(v) if i == 8 else v for i, v in enumerate(r)) for r in row] == [
            (
                *("m.room.member", "@eve:example.com", "@eve:example.com", 1, 1, 5),
                *(1_700_000_000_000, "test", False, "not invited"),
            ),
            (
                *("m.room.message", None, "@alice:example.com", 1, 1, 5),
                *(1_700_000_000_000, "test", True, None),
            ),
        ]

    await database.read(check)


async def test_rollback_leaves_nothing(database: Database, store, event) -> None:
    def write(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.outliers(event("$a"), event("$b"))
        raise KeyError("something else went wrong")

    with pytest.raises(KeyError):
        await database.run(write)
    assert await database.run(_count, "events") == 0
    assert await database.run(_count, "rooms") == 0


async def test_json_is_kept_to_the_letter(database: Database, store) -> None:
    import json

    from federation.events import Event

    text_ = '{ "type":"m.x","sender":"@a:b","content":{"t":"tab\\t \\\\N \\u0000 é \U0001f600",'
    text_ += '"n":1e2 },"room_id":"!room:example.com", "auth_events":[],"prev_events":[]}'
    given = Event.from_pdu(json.loads(text_), "10", event_id="$x", json_text=text_)

    def write(connection: Connection) -> None:
        store(connection).room()
        store(connection).outliers(given)

    await database.run(write)
    loaded = await database.run(events.load_events, ["$x"])
    assert loaded["$x"].event.json == text_
    assert loaded["$x"].event.content["t"] == "tab\t \\N \0 é \U0001f600"


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "m.room\0"},
        {"state_key": "a\0"},
        {"sender": "@a\0:b"},
        {"type": "\ud800"},
        {"prev": ["$\0"]},
    ],
)
async def test_events_that_no_database_can_hold(database: Database, store, event, changes) -> None:
    def write(connection: Connection) -> None:
        store(connection).room()
        store(connection).outliers(event("$fine"), event("$odd", **changes))

    with pytest.raises(UnstorableEvent, match="odd"):
        await database.run(write)
    assert await database.run(_count, "events") == 0
    # Ids like these from a stranger are merely unknown.
    assert await database.run(events.find_known, ["$\0", "$\ud800", "$a"]) == set()


async def test_nul_in_a_display_name_is_no_display_name(database: Database, store, event) -> None:
    odd = event(
        "$m",
        type="m.room.member",
        state_key="@a:b",
        content={"membership": "join", "displayname": "a\0b", "avatar_url": 7},
    )

    def write(connection: Connection) -> list[tuple]:
        store(connection).room()
        store(connection).outliers(odd)
        return _rows(
            connection, "SELECT membership, display_name, avatar_url FROM room_memberships"
        )

    assert await database.run(write) == [("join", None, None)]


async def test_events_of_a_room_without_version(database: Database, store, event) -> None:
    def write(connection: Connection) -> None:
        store(connection).outliers(event("$a"))
        events.load_events(connection, ["$a"])

    with pytest.raises(RoomVersionUnknown, match=r"!room:example\.com"):
        await database.run(write)


async def test_version_12_create_event(database: Database, store, event) -> None:
    from federation.events import Event

    create = Event.from_pdu(
        {"type": "m.room.create", "state_key": "", "sender": "@a:b", "content": {}},
        "12",
        event_id="$hash",
    )

    def write(connection: Connection) -> Event:
        store(connection).room("!hash", "12")
        store(connection).outliers(create)
        return events.load_events(connection, ["$hash"])["$hash"].event

    assert (await database.run(write)).room_id == "!hash"


async def test_auth_chain(database: Database, store, event) -> None:
    def state(event_id: str, *auth: str):
        return event(event_id, type="m.t", state_key=event_id, auth=auth)

    # A deep chain, a cycle (v1 rooms), and a missing auth event.
    chain = [state("$0")] + [state(f"${n}", f"${n - 1}") for n in range(1, 3000)]
    cycle = [state("$x", "$y"), state("$y", "$x", "$missing")]
    message = event("$message", auth=["$2", "$y"])

    def write(connection: Connection) -> None:
        store(connection).room()
        store(connection).outliers(*chain, *cycle, message)

    await database.run(write)

    async def ids(*given: str) -> set[str]:
        return set(await database.read(events.load_auth_chain, given))

    assert await ids("$2999") == {f"${n}" for n in range(3000)}
    assert await ids("$x") == {"$x", "$y"}
    assert await ids("$message") == {"$message", "$0", "$1", "$2", "$x", "$y"}
    assert await ids("$nothing") == set()


async def test_graph_and_extremities(database: Database, store, event) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.outliers(event("$outlier"))
        assert tables.event(event("$a", prev=["$gone", "$outlier"], depth=10), state_group=None)
        extremities = events.load_forward_extremities(connection, event("$a").room_id)
        assert extremities == ["$a"]
        room_id = event("$a").room_id
        assert events.load_backward_extremities(connection, room_id) == ["$gone", "$outlier"]

        # An outlier becomes part of the graph and keeps its stream ordering.
        before = events.load_events(connection, ["$outlier"])["$outlier"]
        assert tables.event(event("$outlier", prev=["$gone"], depth=3))
        after = events.load_events(connection, ["$outlier"])["$outlier"]
        assert (before.outlier, after.outlier) == (True, False)
        assert before.stream_ordering == after.stream_ordering
        assert events.load_forward_extremities(connection, room_id) == ["$a"]
        assert events.load_backward_extremities(connection, room_id) == ["$gone"]
        assert _rows(connection, "SELECT min_depth FROM room_depth") == [(3,)]

        # Rejected and soft-failed events never become extremities, nor do they cover others.
        assert tables.event(event("$bad", prev=["$a"]), rejection="no")
        assert tables.event(event("$soft", prev=["$bad"]), soft_failed=True)
        assert events.load_forward_extremities(connection, room_id) == ["$a"]
        assert tables.event(event("$b", prev=["$soft"]))
        assert events.load_forward_extremities(connection, room_id) == ["$b"]
        assert tables.event(event("$c", prev=["$a"]))
        assert events.load_forward_extremities(connection, room_id) == ["$b", "$c"]
        assert not tables.event(event("$c", prev=["$a"]))
        assert _count(connection, "event_edges") == 7

    await database.run(check)


async def test_rejections_change(database: Database, store, event, member, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.event(event("$root"))
        tables.event(member("$m1", "@m1:b", prev=["$root"]))
        tables.event(member("$m2", "@m2:b", prev=["$m1"]), rejection="wrong at first")

        def memberships() -> list[tuple]:
            return _rows(connection, "SELECT user_id FROM room_memberships ORDER BY user_id")

        def reasons() -> list[tuple]:
            return _rows(
                connection,
                "SELECT e.event_id, e.rejection_reason, r.reason FROM events e"
                " LEFT JOIN rejections r ON r.event_id = e.event_id ORDER BY e.event_id",
            )

        assert memberships() == [("@m1:b",)]
        assert events.load_forward_extremities(connection, room_id) == ["$m1"]

        events.set_rejections(connection, {"$m2": None, "$unknown": "x"})
        assert memberships() == [("@m1:b",), ("@m2:b",)]
        assert events.load_forward_extremities(connection, room_id) == ["$m2"]

        events.set_rejections(connection, {"$m2": "after all", "$m1": "this too"})
        assert memberships() == []
        assert reasons() == [
            ("$m1", "this too", "this too"),
            ("$m2", "after all", "after all"),
            ("$root", None, None),
        ]
        assert events.load_forward_extremities(connection, room_id) == ["$root"]

        events.set_rejections(connection, {"$root": "everything"})
        assert events.load_forward_extremities(connection, room_id) == ["$root"]
        assert state_groups.load_event_state_groups(connection, ["$root"]) == {}

    await database.run(check)


async def test_an_event_with_a_state_group(database: Database, store, event) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.event(event("$a"), state_group=7)
        assert state_groups.load_event_state_groups(connection, ["$a", "$b"]) == {"$a": 7}
        state_groups.set_event_state_groups(connection, {"$a": 8, "$b": 9})
        loaded = state_groups.load_event_state_groups(connection, ["$a", "$b"])
        assert loaded == {"$a": 8, "$b": 9}

    await database.run(check)


async def test_stream_ordering_is_checked(database: Database, store, member) -> None:
    def write(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.outliers(member("$a", "@a:b"), member("$b", "@b:b"))
        connection.execute(
            text(
                "UPDATE room_memberships SET event_stream_ordering ="
                " (SELECT stream_ordering FROM events WHERE event_id = '$b') WHERE event_id = '$a'"
            )
        )

    with pytest.raises(IntegrityError, match="Incorrect event_stream_ordering"):
        await database.run(write)


async def test_concurrent_inserts_of_the_same_outliers(database: Database, store, event) -> None:
    """Transactions that overlap neither fail nor store anything twice nor wait for each other."""
    given = [event(f"${n}", type="m.t", state_key=str(n)) for n in range(600)]

    def write(connection: Connection, chosen: list) -> set[str]:
        return store(connection).outliers(*chosen)

    await database.run(lambda connection: store(connection).room())
    slices = [given[:400], given[200:][::-1], given[::2], given[::-3], given]
    stored = await asyncio.gather(*(database.run(write, chosen) for chosen in slices))
    assert sum(len(new) for new in stored) == 600
    assert set().union(*stored) == {event_.event_id for event_ in given}
    assert await database.run(_count, "events") == 600
    assert await database.run(_count, "event_json") == 600
    assert await database.run(_count, "state_events") == 600


async def test_many_events_are_stored_as_one_by_one(
    database: Database, store, event, member, room_id: str
) -> None:
    """`insert_graph_events` leaves the same rows as `insert_event` for each, outliers included."""
    batch = [
        (event("$a", prev=["$gap"]), None, False),
        (event("$b", prev=["$a"]), "not allowed", False),
        (event("$c", prev=["$b"]), None, False),
        (event("$d", prev=["$a"]), None, True),
        (event("$e", prev=["$d", "$c"]), None, False),
        (member("$outlier", "@alice:example.com", prev=["$a"]), None, False),
        (member("$wrong", "@eve:example.com", prev=["$c"]), "now rejected", False),
        (event("$gap", prev=["$older"]), None, False),
    ]
    tables = (
        "events",
        "event_json",
        "event_edges",
        "event_forward_extremities",
        "event_backward_extremities",
        "event_to_state_groups",
        "room_memberships",
        "rejections",
        "room_depth",
    )

    def prepare(connection: Connection) -> int:
        prepared = store(connection)
        prepared.room()
        prepared.outliers(batch[5][0], batch[6][0])
        return state_groups.create_state_group(
            connection, room_id, "$a", prev_group=None, delta={("m.x", ""): "$x"}
        )

    def one_by_one(connection: Connection) -> None:
        group = prepare(connection)
        for one, rejection, soft_failed in batch:
            assert events.insert_event(
                connection,
                one,
                state_group=group,
                rejection_reason=rejection,
                instance_name="w",
                received_ts=5,
                soft_failed=soft_failed,
            )

    def at_once(connection: Connection) -> None:
        group = prepare(connection)
        new = [
            events.GraphEvent(one, group, rejection, soft_failed)
            for one, rejection, soft_failed in batch
        ]
        how = {"instance_name": "w", "received_ts": 5}
        stored = events.insert_graph_events(connection, room_id, new, **how)
        assert stored == {one.event_id for one, _, _ in batch}
        assert events.insert_graph_events(connection, room_id, new, **how) == set()

    def rows_after(connection: Connection, fill) -> dict[str, list]:
        savepoint = connection.begin_nested()
        fill(connection)
        rows = {
            table: sorted(
                repr({k: v for k, v in row.items() if "ordering" not in k and k != "state_group"})
                for row in connection.execute(text(f"SELECT * FROM {table}")).mappings()
            )
            for table in tables
        }
        savepoint.rollback()
        return rows

    def compare(connection: Connection) -> None:
        expected = rows_after(connection, one_by_one)
        assert rows_after(connection, at_once) == expected
        assert len(expected["events"]) == len(batch)

    await database.run(compare)
