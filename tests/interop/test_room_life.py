"""A room that lives on, on a real Synapse, while our worker has only part of its state.

Synapse's own federation sender brings us the events, and ours brings it what our users do.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from resync.config import load_config
from resync.worker import Worker
from tests.interop.our_server import OurServer
from tests.interop.rooms import build_busy_room
from tests.interop.synapse_server import SynapseServer, User

HELD = 2**53


@contextlib.asynccontextmanager
async def running(ours: OurServer) -> AsyncIterator[Worker]:
    async with Worker.open(load_config(ours.config_path, {})) as worker:
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def hold_resync(ours: OurServer, room_id: str) -> None:
    """Another worker, which does nothing, has the lease on the room."""
    execute(
        ours,
        "INSERT INTO worker_locks (lock_name, lock_key, instance_name, token, last_renewed_ts)"
        " VALUES ('resync_room', :room_id, 'nobody', 'held', :ts)",
        room_id=room_id,
        ts=HELD,
    )


def release_resync(ours: OurServer) -> None:
    execute(ours, "DELETE FROM worker_locks WHERE token = 'held'")


def execute(ours: OurServer, sql: str, **parameters: Any) -> None:
    with ours.database() as connection, connection.begin():
        connection.execute(sqlalchemy.text(sql), parameters)


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await asyncio.to_thread(condition):
                return
            await asyncio.sleep(0.1)


def graph(ours: OurServer, room_id: str) -> set[str]:
    rows = ours.query(
        "SELECT event_id FROM events WHERE room_id = :r AND outlier = :o", r=room_id, o=False
    )
    return {event_id for (event_id,) in rows}


def rejected_at_synapse(synapse: SynapseServer, event_ids: set[str]) -> set[str]:
    database = synapse.directory / "homeserver.db"
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT event_id FROM rejections").fetchall()
    return {event_id for (event_id,) in rows} & event_ids


def live(room_id: str, creator: User, members: list[User]) -> str:
    """People talk, rename, join, leave and are banned; returns the last event."""
    creator.send_message(room_id, "somebody new has come")
    for member in members[1:5]:
        member.send_message(room_id, "welcome")
    members[1].rename(room_id, "renamed while you were new")
    members[2].leave(room_id)
    members[5].join(room_id)
    members[0].ban(room_id, members[3].user_id)
    members[0].send_state(room_id, "m.room.topic", {"topic": "while you were new"})
    creator.kick(room_id, members[4].user_id)
    return creator.send_message(room_id, "that is all")


@pytest.mark.parametrize("room_version", ["10", "12"])
async def test_a_room_lives_while_it_is_partial(
    room_version: str,
    synapse: SynapseServer,
    creator: User,
    members: list[User],
    our_database_url: str,
    tmp_path: Path,
) -> None:
    room_id = await asyncio.to_thread(build_busy_room, creator, members, room_version)
    ours = OurServer(tmp_path, our_database_url)
    await asyncio.to_thread(ours.run, "migrate")
    us, other = ours.user_id(), ours.user_id("other")
    hold_resync(ours, room_id)

    async with running(ours) as worker:
        await worker.join(room_id, [synapse.server_name], us)
        last = await asyncio.to_thread(live, room_id, creator, members)
        await until(lambda: last in graph(ours, room_id))
        received = graph(ours, room_id)

        # What we do is accepted by Synapse.
        said = await worker.creator.send(room_id, us, "m.room.message", {"body": "thank you"})
        await worker.join(room_id, [synapse.server_name], other)
        left = await worker.departures.leave(room_id, other)

        def left_at_synapse() -> bool:
            return creator.room_state(room_id)["m.room.member", other] == left.event_id

        await until(left_at_synapse)
        final = await asyncio.to_thread(creator.send_message, room_id, "goodbye, other")
        await until(lambda: final in graph(ours, room_id))
        assert ours.query("SELECT room_id FROM partial_state_rooms") == [(room_id,)]
        assert ours.query("SELECT 1 FROM un_partial_stated_event_stream") == []

        release_resync(ours)
        assert await worker.wait_until_complete(room_id, 60)
        await until(lambda: not ours.query("SELECT 1 FROM federation_inbound_events_staging"))

    assert {said.event_id, left.event_id, last} <= graph(ours, room_id)
    expected = await asyncio.to_thread(creator.room_state, room_id)
    assert ours.current_state(room_id) == expected
    assert ours.state_after(final) == expected
    everything = graph(ours, room_id) | set(expected.values())
    ours_rejected = {event_id for (event_id,) in ours.query("SELECT event_id FROM rejections")}
    assert ours_rejected & everything == rejected_at_synapse(synapse, everything)
    assert received <= everything


async def test_a_leave_sent_while_partial_is_accepted(
    synapse: SynapseServer,
    creator: User,
    members: list[User],
    our_database_url: str,
    tmp_path: Path,
) -> None:
    """Our only user leaves: Synapse sees it, and nothing is left to do here."""
    room_id = await asyncio.to_thread(build_busy_room, creator, members, "10")
    ours = OurServer(tmp_path, our_database_url)
    await asyncio.to_thread(ours.run, "migrate")
    hold_resync(ours, room_id)

    async with running(ours) as worker:
        await worker.join(room_id, [synapse.server_name], ours.user_id())
        left = await worker.departures.leave(room_id, ours.user_id())

        def left_at_synapse() -> bool:
            return creator.room_state(room_id)["m.room.member", ours.user_id()] == left.event_id

        await until(left_at_synapse)

    for table in ("partial_state_rooms", "partial_state_rooms_servers", "partial_state_events"):
        assert ours.query(f"SELECT 1 FROM {table}") == []
