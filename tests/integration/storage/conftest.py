"""Events and rooms for tests of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from federation.events import Event
from storage import events, partial_state, rooms, state_groups
from storage.database import Database

ROOM = "!room:example.com"
NOW = 1_700_000_000_000


def make_event(
    event_id: str,
    *,
    type: str = "m.room.message",  # noqa: A002
    state_key: str | None = None,
    sender: str = "@alice:example.com",
    content: dict[str, Any] | None = None,
    prev: Sequence[str] = (),
    auth: Sequence[str] = (),
    depth: int = 1,
    room_id: str = ROOM,
    room_version: str = "10",
    **more: Any,
) -> Event:
    pdu: dict[str, Any] = {
        "type": type,
        "room_id": room_id,
        "sender": sender,
        "content": content or {},
        "prev_events": list(prev),
        "auth_events": list(auth),
        "depth": depth,
        "origin_server_ts": 5,
        **more,
    }
    if state_key is not None:
        pdu["state_key"] = state_key
    return Event.from_pdu(pdu, room_version, event_id=event_id)


def make_member(event_id: str, user_id: str, membership: str = "join", **more: Any) -> Event:
    content = {"membership": membership, "displayname": "A name"}
    return make_event(
        event_id, type="m.room.member", state_key=user_id, sender=user_id, content=content, **more
    )


class Store:
    """Short names for what the tests write again and again, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def room(self, room_id: str = ROOM, room_version: str = "10") -> None:
        rooms.insert_room(self.connection, room_id, room_version, "@creator:example.com")

    def outliers(self, *given: Event, rejections: dict[str, str] | None = None) -> set[str]:
        return events.insert_outliers(
            self.connection,
            given,
            rejections=rejections or {},
            instance_name="test",
            received_ts=NOW,
        )

    def event(self, event: Event, rejection: str | None = None, **more: Any) -> bool:
        more.setdefault("state_group", None)
        return events.insert_event(
            self.connection,
            event,
            rejection_reason=rejection,
            instance_name="test",
            received_ts=NOW,
            **more,
        )

    def partial_room(self, room_id: str = ROOM, servers: Sequence[str] = ("a.org",)) -> Event:
        """A room that a local user has joined partially; returns the join."""
        self.room(room_id)
        join = make_member(f"$join{room_id}", "@us:our.server", room_id=room_id, prev=["$before"])
        group = state_groups.create_state_group(
            self.connection, room_id, join.event_id, prev_group=None, delta={}
        )
        self.event(join, state_group=group)
        partial_state.insert_partial_room(
            self.connection,
            room_id,
            joined_via="a.org",
            servers=servers,
            join_event_id=join.event_id,
        )
        partial_state.insert_partial_events(self.connection, room_id, [join.event_id])
        return join


@pytest.fixture
def event() -> Callable[..., Event]:
    return make_event


@pytest.fixture
def member() -> Callable[..., Event]:
    return make_member


@pytest.fixture
def store() -> type[Store]:
    return Store


@pytest.fixture
def room_id() -> str:
    return ROOM


@pytest.fixture
def now() -> int:
    return NOW


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated database for tests without an event loop."""
    opened = Database(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    opened.close_sync()
