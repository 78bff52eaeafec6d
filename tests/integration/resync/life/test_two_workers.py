"""Two workers of one homeserver that receive for the same room, and users who join it at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from federation.canonical_json import encode, parse_json
from federation.simulator import BuiltEvent, SimulatedFederation
from federation.simulator.identity import ServerIdentity
from federation.x_matrix import authorization_header
from resync.worker import Worker
from tests.integration.resync.life.life import Life
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.life.test_sigkill import live
from tests.integration.resync.our_server import OurServer, free_port, until
from tests.integration.resync.truth import check_truth

EVENTS = 300


@pytest.fixture
def life(postgresql_url: str, make_life: Callable[[str], Life]) -> Life:
    return make_life(postgresql_url)


async def push_to(
    port: int, life: Life, sender: ServerIdentity, events: Sequence[BuiltEvent], transaction_id: str
) -> None:
    """Sends events to the worker on a port, as a proxy would hand them to it."""
    path = f"/_matrix/federation/v1/send/{transaction_id}"
    body = {
        "origin": sender.server_name,
        "origin_server_ts": 1,
        "pdus": [parse_json(event.json) for event in events],
    }
    header = authorization_header(
        sender.server_name, sender.key, life.server_name, "PUT", path, body
    )
    async with (
        aiohttp.ClientSession() as session,
        session.put(
            f"https://127.0.0.1:{port}{path}",
            data=encode(body),
            headers={"Authorization": header},
            ssl=False,
        ) as response,
    ):
        assert response.status == 200, await response.text()
        assert await response.json() == {"pdus": {event.event_id: {} for event in events}}


async def test_two_workers_receive_for_one_room(
    life: Life, tmp_path: Path, simulated: SimulatedFederation
) -> None:
    """While it is partial, when it is completed, and once it is full."""
    room = make_room(simulated)
    listen = life.ours.settings["federation"]["listen"]
    ports = [listen["port"], free_port()]
    other = OurServer(
        tmp_path,
        life.ours.database_url,
        simulated,
        server_name=life.server_name,
        instance_name="worker2",
        federation={"listen": {**listen, "port": ports[1]}},
        resync={"backoff_min_seconds": 0.2, "backoff_max_seconds": 0.2},
    )
    users = [room.creator, remote_user(life, room), remote_user(life, room, 1)]

    async def push(events: Sequence[BuiltEvent], half_way: Callable[[], None]) -> None:
        """Every event comes to both, from two servers, in orders of their own."""
        batches = [events[start : start + 5] for start in range(0, len(events), 5)]

        async def push_all(number: int) -> None:
            sender = simulated.residents[number].identity
            order = list(enumerate(batches))
            random.Random(number).shuffle(order)
            for sent, (position, batch) in enumerate(order):
                name = f"{number}-{position}-{events[0].depth}"
                await push_to(ports[number], life, sender, batch, name)
                if sent == len(batches) // 2:
                    half_way()

        await asyncio.gather(push_all(0), push_all(1))
        await life.until_stored(events)

    async with life.running(), Worker.open(other.config) as second:
        work = asyncio.create_task(second.run())
        life.hold_resync()
        join = await life.join(room)
        events = live(room, users, EVENTS)
        await push(events, life.release_resync)
        await life.until_full(room)
        check_truth(life.ours, room, join, events, all_announced=False)

        # Nobody puts the current state right any more: each worker has to know what the other did.
        later = live(room, users, EVENTS)
        await push(later, lambda: None)
        await until(lambda: not life.staged())
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    assert life.ours.current_state(room) == room.current_state()
    tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
    assert tips == [later[-1].event_id]
    edges = life.ours.query("SELECT event_id, prev_event_id FROM event_edges")
    assert len(edges) == len(set(edges))


async def test_what_was_judged_before_the_other_worker_stored_is_judged_again(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Two topics on forks, of which the one stored first has to win."""
    room = make_room(simulated)
    config = life.ours.config
    # The port is the first worker's.
    federation = config.federation.model_copy(update={"listen": None})
    listener_less = config.model_copy(update={"federation": federation})
    async with life.running() as first, Worker.open(listener_less) as second:
        join = await life.join(room)
        await life.until_full(room)
        loser = room.set_topic("Earlier", prev_events=[join])
        winner = room.set_topic("Later", prev_events=[join])
        loop = asyncio.get_running_loop()
        judge = second.receiver._judge
        judged: list[int] = []

        def judge_and_wait(*args: Any) -> Any:
            judgement = judge(*args)
            if not judged:
                took_in = first.receiver.take_in(room.room_id, [room.event(winner.event_id)])
                asyncio.run_coroutine_threadsafe(took_in, loop).result(30)
            judged.append(1)
            return judgement

        second.receiver._judge = judge_and_wait  # type: ignore[method-assign]
        await second.receiver.take_in(room.room_id, [room.event(loser.event_id)])

        assert len(judged) == 2
        assert life.ours.current_state(room)["m.room.topic", ""] == winner.event_id
        tips = life.ours.column("SELECT event_id FROM event_forward_extremities")
        assert tips == sorted([loser.event_id, winner.event_id])


async def test_two_users_join_at_once(life: Life, simulated: SimulatedFederation) -> None:
    """Each join is stored after the other: neither takes the other's member out of the state."""
    room = make_room(simulated)
    async with life.running():
        life.hold_resync()
        await life.join(room)
        await life.worker.departures.leave(room.room_id, life.alice)
        await until(lambda: room.membership(life.alice) == "leave")
        with life.ours.connect() as connection:
            # The room is known, so its row can be held until both joins wait for it.
            connection.exec_driver_sql("SELECT 1 FROM rooms FOR NO KEY UPDATE")
            joins = asyncio.gather(life.join(room), life.join(room, life.bob))
            blocked = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            blocked += " AND wait_event_type = 'Lock'"
            await until(lambda: len(life.ours.query(blocked)) == 2)
        first, second = await joins

        state = life.ours.current_state(room)
        assert state["m.room.member", life.alice] == first
        assert state["m.room.member", life.bob] == second
        assert life.partial_events() == {first, second}
        life.release_resync()
        await life.until_full(room)
    assert life.ours.current_state(room) == room.current_state()
