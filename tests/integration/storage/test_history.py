"""What other servers may ask about a room's history."""

from __future__ import annotations

from sqlalchemy import Connection

from federation.events import StateKey
from storage import current_state, history, state_groups
from storage.database import Database
from storage.history import HOPS_AT_ONCE


async def test_walking_back(database: Database, store, event, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        tables.room("!other:example.com")
        tables.event(event("$elsewhere", room_id="!other:example.com"))
        tables.event(event("$0", prev=["$elsewhere", "$unknown"], depth=1))
        last = 4 * HOPS_AT_ONCE
        for number in range(1, last + 1):
            rejection = "no" if number == last - 2 else None
            tables.event(event(f"${number}", prev=[f"${number - 1}"], depth=number + 1), rejection)
        tables.event(event("$fork", prev=["$3"], depth=last))
        tables.event(event("$end", prev=[f"${last}", "$fork"], depth=last + 2))

        def back(limit: int, **more) -> list[str]:
            start = more.pop("start", ["$end"])
            more.setdefault("excluded", ())
            found = history.load_before(connection, room_id, start, limit=limit, **more)
            return [event.event_id for event in found]

        # The nearest first; what is rejected is walked through and not shown.
        assert back(3) == [f"${last}", "$fork", f"${last - 1}"]
        assert f"${last - 2}" not in back(10 * last)
        assert len(back(10 * last)) == last + 1
        assert back(last) == back(10 * last)[:last]
        assert back(10, excluded=[f"${last}", "$2"]) == ["$fork", "$3"]
        assert back(10 * last, min_depth=last) == [f"${last}", "$fork", f"${last - 1}"]
        assert back(10, start=["$unknown"]) == []

    await database.run(check)


async def test_a_port_is_no_server(database: Database, store, member, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        users = ["@a:one.org:8448", "@b:[::1]", "@c:50%_x.org"]
        events = [member(f"${number}", user) for number, user in enumerate(users)]
        tables.outliers(*events)
        state = {event.key: event.event_id for event in events}
        current_state.replace_current_state(
            connection, room_id, state, instance_name="w", own_server="us"
        )
        for server in ("one.org:8448", "[::1]", "50%_x.org"):
            assert history.has_member(connection, room_id, server), server
        for server in ("8448", "1]", "org", "5000x.org", "%", "50%/_x.org"):
            assert not history.has_member(connection, room_id, server), server

    await database.run(check)


async def test_who_is_in_a_state(database: Database, store, member, room_id) -> None:
    def check(connection: Connection) -> None:
        tables = store(connection)
        tables.room()
        events = {
            name: member(f"${name}", user, membership)
            for name, user, membership in (
                ("in", "@a:one.org", "join"),
                ("out", "@a:one.org", "leave"),
                ("port", "@b:two.org:8448", "join"),
                ("invited", "@c:three.org", "invite"),
            )
        }
        tables.outliers(*events.values())

        def group(prev: int | None, *names: str) -> int:
            delta = {events[name].key: events[name].event_id for name in names}
            delta[StateKey("m.room.topic", ":one.org")] = "$topic"
            return state_groups.create_state_group(
                connection, room_id, "$x", prev_group=prev, delta=delta
            )

        empty = group(None)
        inside = group(empty, "in", "port")
        later = group(inside, "invited")
        gone = group(later, "out")
        groups = {empty, inside, later, gone}

        def having(server: str, *memberships: str) -> set[int]:
            return state_groups.find_with_member(connection, groups, server, memberships)

        assert having("one.org", "join", "invite") == {inside, later}
        assert having("one.org", "leave") == {gone}
        assert having("8448", "join") == set()
        assert having("three.org", "join") == set()
        assert having("three.org", "join", "invite") == {later, gone}

    await database.run(check)
