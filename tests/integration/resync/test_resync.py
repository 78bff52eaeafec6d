"""A resync from the partial join to the announcement, on rooms of every kind."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from federation.room_versions import ROOM_VERSIONS
from federation.simulator import (
    Mix,
    RoomBuilder,
    SimulatedFederation,
    fork_and_merge,
    long_history,
)
from tests.integration.resync.our_server import ALICE, BOB, OurServer, as_plain, until
from tests.integration.resync.truth import check_truth

BUSY = Mix(
    left=0.1,
    kicked=0.05,
    invited=0.1,
    banned=0.1,
    renamed=0.3,
    renames=2,
    returned=0.2,
    moderators=0.1,
    messages=0.3,
)


@pytest.mark.parametrize("room_version", list(ROOM_VERSIONS))
async def test_rooms_of_every_version(
    room_version: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room(room_version, members=60, mix=BUSY)
    joined = await ours_on_sqlite.join(room)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert ours_on_sqlite.rejected(room) == set()
    assert ours_on_sqlite.job(room)["given_up"] == []


async def test_everything_about_a_busy_room(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """Every table that the end of a resync touches."""
    room = simulated.create_room("11", members=150, mix=BUSY)
    before_join = as_plain(room.current_state())
    joined = await ours.join(room)
    partial = ours.current_state(room)
    first_delta = ours.query("SELECT MAX(stream_id) FROM current_state_delta_stream")[0][0]

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [])
    full = {**before_join, ("m.room.member", ALICE): joined.join_event_id}
    assert ours.current_state(room) == full

    # The difference, once, and nothing that did not change.
    deltas = ours.query(
        "SELECT type, state_key, event_id, prev_event_id, stream_id"
        " FROM current_state_delta_stream WHERE stream_id > :first",
        first=first_delta,
    )
    assert sorted(row[:4] for row in deltas) == sorted(
        (*key, event_id, None) for key, event_id in full.items() if key not in partial
    )
    assert len({row[4] for row in deltas}) == 1

    # Each event as the resident sent it, all of them outliers but our join.
    texts = dict(ours.query("SELECT event_id, json FROM event_json"))
    wanted = {*full.values(), *room.auth_chain(full.values())}
    assert wanted <= texts.keys() <= room.events.keys()
    for event_id in texts.keys() - {joined.join_event_id}:
        assert json.loads(texts[event_id]) == room.pdu(event_id)
    graph = "SELECT event_id FROM events WHERE NOT outlier"
    assert ours.column(graph) == [joined.join_event_id]
    memberships = {
        event_id: (user_id, membership)
        for event_id, user_id, membership in ours.query(
            "SELECT event_id, user_id, membership FROM room_memberships"
        )
    }
    assert memberships == {
        event_id: (event.state_key, event.membership)
        for event_id, event in room.events.items()
        if event_id in texts and event.membership
    }
    assert Counter(membership for _, membership in memberships.values()).keys() == {
        "join",
        "leave",
        "invite",
        "ban",
    }
    assert ours.query("SELECT user_id, membership FROM local_current_membership") == [
        (ALICE, "join")
    ]

    # Announced once, with the caches of a Synapse beside us.
    assert ours.announced_events() == {joined.join_event_id: False}
    assert ours.query("SELECT instance_name, room_id FROM un_partial_stated_room_stream") == [
        ("worker1", room.room_id)
    ]
    caches = ours.column("SELECT cache_func FROM cache_invalidation_stream_by_instance")
    assert {"is_partial_state_room", "get_partial_rooms"} <= set(caches)
    job = ours.job(room)
    assert job["completed_ts"] >= job["created_ts"] > 0
    assert (job["attempts"], job["last_error"], job["phase"]) == (0, None, None)


async def test_a_finished_room_is_left_alone(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=30)
    await ours.join(room)
    await ours.resync()
    before = ours.contents()
    requests = [len(resident.requests) for resident in simulated.residents]

    await ours.resync()

    after = ours.contents()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"stream_positions", "worker_locks"}
    assert [len(resident.requests) for resident in simulated.residents] == requests


async def test_long_histories_and_forks_before_the_join(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=30)
    users = [
        event.state_key
        for event in (room.events[event_id] for event_id in room.current_state().values())
        if event.membership == "join" and event.state_key is not None
    ]
    long_history(room, users[:10], 20)
    for start in range(0, 12, 4):
        fork_and_merge(room, [users[start : start + 2], users[start + 2 : start + 4]], messages=2)
    joined = await ours_on_sqlite.join(room)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])


async def test_several_tips_before_the_join(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    """The join has several parents that we do not have, with different states."""
    room = simulated.create_room("10", members=30)
    users = [f"@user{number}:{simulated.server_names[0]}" for number in range(0, 30, 3)]
    users = [user for user in users if room.membership(user) == "join"][:4]
    tips = tuple(room.forward_extremities)
    for user in users:
        room.rename(user, "On a fork", prev_events=tips)
    assert len(room.forward_extremities) == 4
    joined = await ours.join(room)
    assert len(room.events[joined.join_event_id].prev_event_ids) == 4

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [])
    requests = simulated.residents[0].requests
    assert (requests.count("state_ids"), requests.count("state")) == (4, 1)


async def test_several_rooms_at_once(simulated: SimulatedFederation, ours: OurServer) -> None:
    rooms: list[tuple[RoomBuilder, str]] = []
    async with ours.worker() as worker:
        for version in ("9", "10", "11", "12", "12"):
            room = simulated.create_room(version, members=40)
            joined = await worker.join(room.room_id, simulated.server_names[:1], ALICE)
            rooms.append((room, joined.join_event_id))
        await worker.run(once=True)

    for room, join_event_id in rooms:
        check_truth(ours, room, join_event_id, [], rooms=len(rooms))


async def test_a_room_that_fails_does_not_hold_the_others_up(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    stuck = simulated.create_room("10", members=10)
    await ours.join(stuck)
    for resident in simulated.residents:
        resident.faults.refuse("state_ids", containing=stuck.room_id)
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [])
    assert ours.job(stuck)["attempts"] == 1
    assert ours.column("SELECT room_id FROM partial_state_rooms") == [stuck.room_id]


async def test_whoever_waits_for_a_room_is_woken(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=10)
    async with ours_on_sqlite.worker() as worker:
        await worker.join(room.room_id, simulated.server_names[:1], ALICE)
        assert not await worker.wait_until_complete(room.room_id, 0.05)
        work = asyncio.create_task(worker.run())
        try:
            assert await worker.wait_until_complete(room.room_id, 30)
            assert ours_on_sqlite.partial_rows() == []
            assert await worker.wait_until_complete(room.room_id, 5)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def test_a_room_joined_while_the_worker_runs_is_taken_at_once(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    async with ours.worker() as worker:
        work = asyncio.create_task(worker.run())
        try:
            room = simulated.create_room("10", members=20)
            joined = await worker.join(room.room_id, simulated.server_names[:1], ALICE)
            await until(lambda: ours.partial_rows() == [])
            again = simulated.create_room("10", members=20)
            second = await worker.join(again.room_id, simulated.server_names[:1], BOB)
            await until(lambda: ours.partial_rows() == [])
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    check_truth(ours, room, joined.join_event_id, [], rooms=2)
    check_truth(ours, again, second.join_event_id, [], rooms=2)


async def test_join_with_wait_does_everything_itself(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("12", members=30)

    output = await ours_on_sqlite.run(
        "join", room.room_id, "--via", simulated.server_names[0], "--user", ALICE, "--wait"
    )

    (tip,) = room.forward_extremities
    assert room.events[tip].sender == ALICE
    assert f"Joined {room.room_id} partially" in output
    assert f"{room.room_id} is fully stated." in output
    check_truth(ours_on_sqlite, room, tip, [])
