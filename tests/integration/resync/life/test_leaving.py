"""Leaving, being removed, joining again: before the resync, during it, and instead of it."""

from __future__ import annotations

import asyncio

import pytest

from federation.simulator import RoomBuilder, SimulatedFederation, scenarios
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_acting import queued
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.our_server import until
from tests.integration.resync.truth import check_truth


def assert_gone(life: Life, room: RoomBuilder) -> None:
    """Nothing says any more that the room is or was partial, nor what its state is."""
    assert life.ours.partial_rows() == []
    for table in (
        "resync_jobs",
        "current_state_events",
        "event_forward_extremities",
        "event_backward_extremities",
    ):
        assert life.ours.query(f"SELECT * FROM {table}") == [], table
    assert life.leases() == []
    assert life.ours.announced_rooms() == []
    assert life.graph() == set()


async def test_can_join_again_during_the_partial_join(
    life: Life, simulated: SimulatedFederation
) -> None:
    """A second user joins: another partial join, and the data of the first are kept."""
    room = make_room(simulated)
    life.hold_resync()
    first = await life.join(room)
    before = life.ours.query("SELECT join_event_id, joined_via FROM partial_state_rooms")

    second = await life.join(room, life.bob)

    after = life.ours.query("SELECT join_event_id, joined_via FROM partial_state_rooms")
    assert after == before
    assert life.partial_events() == {first, second}
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, first, [room.events[second]])


async def test_leave_does_not_wait_for_the_resync(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    await simulated.residents[0].requests.wait_for("state_ids")
    waiting = asyncio.create_task(life.worker.wait_until_complete(room.room_id, 20))

    leave = await life.worker.departures.leave(room.room_id, life.alice)

    await until(lambda: not queued(life))
    assert room.membership(life.alice) == "leave"
    assert leave.event_id in room.events
    assert life.membership(room, life.alice) == "leave"
    async with asyncio.timeout(2):
        assert await waiting
    await until(lambda: not life.leases())
    assert_gone(life, room)
    life.release_resync()


async def test_leave_before_the_resync_has_started(
    make_life: object, simulated: SimulatedFederation, life_on_sqlite: Life
) -> None:
    life = life_on_sqlite
    life.worker._scheduler._settings = life.worker._scheduler._settings.model_copy(
        update={"concurrent_rooms": 0}
    )
    room = make_room(simulated)
    await life.join(room)

    await life.worker.departures.leave(room.room_id, life.alice)

    await until(lambda: not queued(life))
    assert room.membership(life.alice) == "leave"
    assert simulated.residents[0].requests.count("state_ids") == 0
    assert_gone(life, room)


async def test_leave_is_seen_after_the_resync(life: Life, simulated: SimulatedFederation) -> None:
    """Another local user stays, so that the resync goes on."""
    room = make_room(simulated)
    life.hold_resync()
    first = await life.join(room)
    second = await life.join(room, life.bob)

    leave = await life.worker.departures.leave(room.room_id, life.alice)
    await until(lambda: not queued(life))
    assert life.is_partial(room)

    life.release_resync()
    await life.until_full(room)
    events = [room.events[second], room.events[leave.event_id]]
    check_truth(life.ours, room, first, events)
    assert life.membership(room, life.alice) == "leave"
    assert life.membership(room, life.bob) == "join"


async def test_leave_after_a_second_partial_join(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    await life.join(room, life.bob)

    await life.worker.departures.leave(room.room_id, life.bob)
    assert life.is_partial(room)
    await life.worker.departures.leave(room.room_id, life.alice)

    await until(lambda: not queued(life))
    await until(lambda: not life.leases())
    assert_gone(life, room)
    assert room.membership(life.alice) == room.membership(life.bob) == "leave"
    life.release_resync()


async def test_leave_then_rejoin_without_completing(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    await life.receive([room.message("Before")])
    leave = await life.worker.departures.leave(room.room_id, life.alice)
    await until(lambda: leave.event_id in room.events and not queued(life))
    room.set_topic("Meanwhile")

    join = await life.join(room)
    later = room.message("After")
    await life.receive([later])
    life.release_resync()
    await life.until_full(room)

    check_truth(life.ours, room, join, [later])
    assert life.membership(room, life.alice) == "join"


async def test_leave_then_another_user_joins(life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    leave = await life.worker.departures.leave(room.room_id, life.alice)
    await until(lambda: leave.event_id in room.events and not queued(life))

    join = await life.join(room, life.bob)
    life.release_resync()
    await life.until_full(room)

    check_truth(life.ours, room, join, [])
    assert life.membership(room, life.alice) == "leave"
    assert life.membership(room, life.bob) == "join"


@pytest.mark.parametrize("how", ["kick", "ban"])
async def test_leave_by_remote(how: str, life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    removal = room.kick(life.alice) if how == "kick" else room.ban(life.alice)

    results = await life.push([removal])

    assert results == {removal.event_id: {}}
    await until(lambda: not life.is_partial(room))
    await until(lambda: not life.leases())
    assert_gone(life, room)
    assert life.membership(room, life.alice) == ("leave" if how == "kick" else "ban")
    life.release_resync()


async def test_a_kick_that_is_not_allowed_does_not_end_the_resync(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Partial state accepts it; the servers of the room, which still talk to us, do not."""
    room = make_room(simulated)
    moderator = scenarios.ban_moderator(room, f"@moderator:{simulated.server_names[1]}")
    life.hold_resync()
    join = await life.join(room)
    wrong = scenarios.rejected_wrongly(room, moderator, life.alice)

    await life.receive([wrong.kick])
    assert life.membership(room, life.alice) == "leave"
    assert life.is_partial(room)

    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, join, [wrong.kick])
    assert life.membership(room, life.alice) == "join"


async def test_purge_during_the_resync(life: Life, simulated: SimulatedFederation) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    await life.receive([room.message("Hello")])
    await simulated.residents[0].requests.wait_for("state_ids")

    assert await life.worker.departures.purge(room.room_id)

    await until(lambda: not life.leases())
    life.release_resync()
    contents = life.ours.contents()
    ignored = {"stream_positions", "resync_received_transactions", "destinations"}
    left = {name: rows for name, rows in contents.items() if name not in ignored and rows}
    assert not any(room.room_id in row for rows in left.values() for row in rows), left
    assert contents["events"] == contents["event_json"] == []
    assert not await life.worker.departures.purge(room.room_id)
    rejoined = await life.join(room)
    await life.until_full(room)
    check_truth(life.ours, room, rejoined, [])


async def test_what_was_known_of_a_purged_room_is_forgotten(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """SQLite gives the numbers of its state groups again, to states of the room as it is now."""
    life = life_on_sqlite
    room = make_room(simulated)
    user = remote_user(life, room)
    room.set_power_levels({"users": {user: 50}})
    life.hold_resync()
    await life.join(room)
    await life.receive([room.message("Before")])
    groups = life.ours.column("SELECT id FROM state_groups")
    assert await life.worker.departures.purge(room.room_id)
    as_moderator = room.current_state()
    room.set_power_levels({"users": {user: 0}})

    rejoined = await life.join(room)
    assert set(groups) & set(life.ours.column("SELECT id FROM state_groups"))
    auth_types = room.auth_types("m.room.topic", {}, user, "")
    refused = room.set_topic(
        "Mine",
        sender=user,
        auth_events=[as_moderator[key] for key in auth_types],
        rejected=True,
    )
    await life.receive([refused])

    assert life.ours.rejected(room) == {refused.event_id}
    life.release_resync()
    await life.until_full(room)
    check_truth(life.ours, room, rejoined, [refused])
