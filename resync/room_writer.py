"""Writing what a resync found: one transaction per batch, then the announcement.

Source: design, section 3, steps 3 to 5.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from federation.events import StateKey
from resync.walk.recheck import Rechecked
from resync.walk.states import PlannedGroup
from storage import (
    current_state,
    events,
    extremities,
    jobs,
    partial_state,
    rooms,
    state_groups,
    streams,
)
from storage.database import Database
from storage.state_groups import NewStateGroup
from storage.streams import StreamIdGenerator

ROOM_CACHES = 3
"""How many caches of a Synapse beside us a completed room invalidates."""


@dataclass(frozen=True, slots=True)
class Announcements:
    """The streams a resync writes to, and how their readers learn of new rows.

    Attributes:
        notify: called after each commit; the tables are the truth, this is the hint.
    """

    events: StreamIdGenerator
    rooms: StreamIdGenerator
    caches: StreamIdGenerator
    notify: Callable[[], Awaitable[None]]


class RoomChanged(Exception):
    """The room received events while it was being completed; it is walked again."""


class RoomWriter:
    """Everything a resync writes about one room, under the protection of its lease."""

    def __init__(
        self,
        room_id: str,
        *,
        database: Database,
        announcements: Announcements,
        instance_name: str,
        assert_lease: Callable[[Connection], None],
    ) -> None:
        """`assert_lease` raises LeaseLost inside a transaction if the room is no longer ours."""
        self._room_id = room_id
        self._database = database
        self._announcements = announcements
        self._instance_name = instance_name
        self._assert_lease = assert_lease

    async def write_batch(
        self,
        rechecked: Sequence[Rechecked],
        groups: Sequence[PlannedGroup],
        given_up: Mapping[str, str],
    ) -> None:
        """Takes rechecked events out of partial state and announces them.

        Args:
            rechecked: in the order in which they were walked.
            groups: the state groups planned for them, parents before children.
            given_up: what no server delivered so far, to be shown with the room.

        Raises:
            LeaseLost: another worker has the room; nothing was written.
        """

        def write(connection: Connection, stream_ids: Sequence[int]) -> dict[PlannedGroup, int]:
            self._assert_lease(connection)
            rooms.lock_room(connection, self._room_id)
            stored = store_groups(connection, self._room_id, groups)
            state_groups.set_event_state_groups(
                connection,
                {
                    result.event.event_id: id_of(result.state_after.group, stored)
                    for result in rechecked
                },
            )
            changed = {
                result.event.event_id: result.rejection
                for result in rechecked
                if result.rejection_status_changed
            }
            events.set_rejections(connection, changed)
            partial_state.clear_partial_events(
                connection,
                self._room_id,
                {result.event.event_id: result.rejection_status_changed for result in rechecked},
                stream_ids,
                self._instance_name,
            )
            jobs.record_given_up(connection, self._room_id, given_up)
            return stored

        async with self._announcements.events.reserve(len(rechecked)) as stream_ids:
            stored = await self._database.run(write, stream_ids)
        for group, group_id in stored.items():
            group.group_id = group_id
        await self._announcements.notify()

    async def complete(
        self, state: Mapping[StateKey, str], latest: Sequence[str], given_up: Mapping[str, str]
    ) -> None:
        """Makes the room fully stated and announces it.

        Args:
            state: the current state, the resolution over `extremities`.
            latest: the forward extremities it was resolved from.

        Raises:
            RoomChanged: the extremities are others by now.
            RoomStillPartial: an event slipped in; nothing was written.
            LeaseLost: see `write_batch`.
        """
        now_ms = int(time.time() * 1000)

        def write(
            connection: Connection, room_stream_id: int, cache_stream_ids: Sequence[int]
        ) -> None:
            self._assert_lease(connection)
            rooms.lock_room(connection, self._room_id)
            if set(extremities.load_forward_extremities(connection, self._room_id)) != set(latest):
                raise RoomChanged(self._room_id)
            current_state.replace_current_state(
                connection, self._room_id, state, instance_name=self._instance_name
            )
            partial_state.complete_partial_room(
                connection, self._room_id, room_stream_id, self._instance_name
            )
            streams.write_cache_invalidations(
                connection,
                cache_stream_ids,
                self._instance_name,
                [
                    ("is_partial_state_room", [self._room_id]),
                    ("_get_partial_state_servers_at_join", [self._room_id]),
                    ("get_partial_rooms", None),
                ],
                now_ms,
            )
            jobs.record_given_up(connection, self._room_id, given_up)
            jobs.record_complete(connection, self._room_id, now_ms=now_ms)

        async with (
            self._announcements.caches.reserve(ROOM_CACHES) as cache_stream_ids,
            self._announcements.rooms.reserve(1) as room_stream_ids,
        ):
            await self._database.run(write, room_stream_ids[0], cache_stream_ids)
        await self._announcements.notify()


def id_of(group: PlannedGroup, stored: Mapping[PlannedGroup, int]) -> int:
    return group.group_id if group.group_id is not None else stored[group]


def store_groups(
    connection: Connection, room_id: str, groups: Sequence[PlannedGroup]
) -> dict[PlannedGroup, int]:
    """Stores planned state groups and returns their ids. Parents come before children."""
    new: dict[PlannedGroup, NewStateGroup] = {}
    for group in groups:
        prev: int | NewStateGroup | None = None
        if group.prev is not None:
            prev = group.prev.group_id if group.prev.group_id is not None else new[group.prev]
        new[group] = NewStateGroup(group.event_id, prev, group.delta)
    ids = state_groups.create_state_groups(connection, room_id, list(new.values()))
    return dict(zip(new, ids, strict=True))
