"""Servers that go and come back: another is asked, the room waits in the open, and it finishes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from federation.errors import HttpError
from federation.simulator import ALL_JOINED, Resident, SimulatedFederation
from resync.admin.token import load_or_create_token
from resync.errors import JoinFailed
from resync.worker import Worker
from tests.integration.resync.our_server import ALICE, OurServer, free_port, until
from tests.integration.resync.truth import check_truth


@pytest.fixture
def patient(sqlite_url: str, make_ours: Callable[..., OurServer]) -> OurServer:
    """Our server, with an admin listener, which waits for most of an hour after a failure."""
    return make_ours(
        sqlite_url,
        admin={"port": free_port(), "token_path": "admin.token"},
        resync={"backoff_min_seconds": 3000.0},
    )


@asynccontextmanager
async def at_work(ours: OurServer) -> AsyncIterator[Worker]:
    """A worker that is running, until the block ends."""
    async with ours.worker() as worker:
        work = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            assert not work.done(), work
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def ask_admin(ours: OurServer, method: str, path: str) -> tuple[int, dict[str, Any]]:
    admin = ours.config.admin
    assert admin is not None
    token = load_or_create_token(admin.token_path)
    url = f"http://{admin.bind}:{admin.port}/_resync/admin/v1{path}"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.request(method, url) as response,
    ):
        return response.status, await response.json()


def is_complete(ours: OurServer) -> bool:
    return ours.partial_rows() == []


async def test_another_server_is_used_when_the_one_we_joined_through_is_gone(
    simulated: SimulatedFederation, ours: OurServer
) -> None:
    room = simulated.create_room("10", members=30)
    joined = await ours.join(room)
    await simulated.residents[0].disappear()

    await ours.resync()

    check_truth(ours, room, joined.join_event_id, [])
    assert simulated.residents[1].requests.count("state_ids") == 1
    retry = dict(ours.query("SELECT destination, retry_interval FROM destinations"))
    assert retry[simulated.server_names[0]] > 0
    assert not retry.get(simulated.server_names[1])


@pytest.mark.parametrize("endpoint", ["state_ids", "state", "event"])
@pytest.mark.parametrize("status", [403, 404, 429, 500])
async def test_another_server_is_asked_when_one_refuses(
    endpoint: str, status: int, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=40)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    if status == 429:
        # As long as this is not waited for.
        resident.faults.rate_limit(endpoint, retry_after_ms=3_600_000)
    else:
        resident.faults.refuse(endpoint, status)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert other.requests.count(endpoint) >= 1


async def test_the_room_waits_in_backoff_and_finishes_when_triggered(
    simulated: SimulatedFederation, patient: OurServer
) -> None:
    room = simulated.create_room("10", members=30)
    joined = await patient.join(room)
    for resident in simulated.residents:
        await resident.disappear()

    async with at_work(patient):
        await until(lambda: patient.job(room)["attempts"] == 1)
        before = time.time() * 1000
        shown = await patient.status(room)
        status, answer = await ask_admin(patient, "GET", f"/rooms/{room.room_id}")
        assert status == 200
        assert answer == shown
        assert shown["state"] == "backoff"
        assert shown["attempts"] == 1
        assert 2000 * 1000 < shown["next_attempt_ts"] - before < 4000 * 1000
        for server_name in (*simulated.server_names, *simulated.unreachable):
            assert server_name in shown["last_error"]
        assert "cannot connect" in shown["last_error"]
        assert shown["last_error_server"] == simulated.server_names[0]
        assert shown["partial_events"] == 1
        text = await patient.run("status", room.room_id)
        assert "backoff" in text
        assert "cannot connect" in text

        # A trigger while nobody is there: it is tried, and waits again.
        status, answer = await ask_admin(patient, "POST", f"/rooms/{room.room_id}/resync")
        assert (status, answer["state"]) == (202, "queued")
        await until(lambda: patient.job(room)["attempts"] == 2)
        assert (await patient.status(room))["state"] == "backoff"

        await simulated.residents[1].come_back()
        status, _ = await ask_admin(patient, "POST", f"/rooms/{room.room_id}/resync")
        assert status == 202
        status, answer = await ask_admin(patient, "GET", f"/rooms/{room.room_id}?wait=30")
        assert (status, answer["state"]) == (200, "complete")
        status, answer = await ask_admin(patient, "POST", f"/rooms/{room.room_id}/resync")
        assert status == 409

    check_truth(patient, room, joined.join_event_id, [])
    shown = await patient.status(room)
    assert (shown["state"], shown["last_error"], shown["attempts"]) == ("complete", None, 0)
    assert shown["next_attempt_ts"] is None


async def test_a_trigger_from_the_command_line_reaches_a_running_worker(
    simulated: SimulatedFederation, patient: OurServer
) -> None:
    room = simulated.create_room("10", members=10)
    joined = await patient.join(room)
    for resident in simulated.residents:
        await resident.disappear()

    async with at_work(patient):
        await until(lambda: patient.job(room)["attempts"] == 1)
        for resident in simulated.residents:
            await resident.come_back()
        assert "due now" in await patient.run("trigger", room.room_id)
        await until(lambda: is_complete(patient), seconds=60)

    check_truth(patient, room, joined.join_event_id, [])


async def test_once_a_server_is_back_the_room_finishes_by_itself(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    """And the attempts meanwhile are further and further apart."""
    ours = make_ours(sqlite_url, resync={"backoff_min_seconds": 0.1, "backoff_max_seconds": 1.0})
    room = simulated.create_room("10", members=10)
    joined = await ours.join(room)
    for resident in simulated.residents:
        resident.faults.refuse("state_ids", 403)

    async with at_work(ours):
        await until(lambda: ours.job(room)["attempts"] >= 3)
        assert "403 M_FORBIDDEN" in ours.job(room)["last_error"]
        for resident in simulated.residents:
            resident.faults.clear()
        await until(lambda: is_complete(ours), seconds=60)

    check_truth(ours, room, joined.join_event_id, [])


async def test_a_join_that_has_not_spread_yet_is_a_reason_to_come_back(
    sqlite_url: str, tmp_path: Path
) -> None:
    """The other servers answer 403 until they have seen our join; the first one is gone."""
    async with SimulatedFederation(servers=2, propagates_joins=False) as simulated:
        ours = OurServer(
            tmp_path,
            sqlite_url,
            simulated,
            resync={"backoff_min_seconds": 0.1, "backoff_max_seconds": 1.0},
        )
        room = simulated.create_room("10", members=10)
        joined = await ours.join(room)
        await simulated.residents[0].disappear()

        async with at_work(ours):
            await until(lambda: ours.job(room)["attempts"] >= 1)
            assert "403" in ours.job(room)["last_error"]
            simulated.propagate()
            await until(lambda: is_complete(ours), seconds=60)

        check_truth(ours, room, joined.join_event_id, [])


async def test_the_server_we_joined_through_is_found_again_behind_many_dead_ones(
    simulated: SimulatedFederation, patient: OurServer
) -> None:
    """Its room has sixty servers that nobody has ever seen; it must not wait for its turn."""
    room = simulated.create_room("10", members=10)
    simulated.residents[0].faults.lie("send_join", add_dead_servers(60))
    joined = await patient.join(room)
    for resident in simulated.residents:
        await resident.disappear()

    async with at_work(patient):
        await until(lambda: patient.job(room)["attempts"] == 1, seconds=60)
        await simulated.residents[0].come_back()
        status, _ = await ask_admin(patient, "POST", f"/rooms/{room.room_id}/resync")
        assert status == 202
        await until(lambda: is_complete(patient) or patient.job(room)["attempts"] > 1, seconds=60)

    assert patient.job(room)["last_error"] is None
    check_truth(patient, room, joined.join_event_id, [])


async def test_every_server_has_its_chance_when_there_are_many(
    sqlite_url: str, tmp_path: Path
) -> None:
    """One in thirty can answer, and fewer than that are asked in one attempt."""
    async with SimulatedFederation(servers=30) as simulated:
        ours = OurServer(
            tmp_path,
            sqlite_url,
            simulated,
            resync={"backoff_min_seconds": 0.01, "backoff_max_seconds": 0.05},
        )
        room = simulated.create_room("10", members=30, mix=ALL_JOINED)
        joined = await ours.join(room)
        # The last one by name, but for the one we joined through.
        able = max(simulated.residents[1:], key=lambda one: one.server_name)
        for resident in simulated.residents:
            if resident is not able:
                resident.faults.refuse("state_ids", 403)

        async with at_work(ours):
            await until(lambda: is_complete(ours), seconds=60)

        assert able.requests.count("state_ids") == 1
        check_truth(ours, room, joined.join_event_id, [])


async def test_a_notary_that_is_away_for_now_costs_no_members(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    notary, other = simulated.residents
    ours = make_ours(sqlite_url, federation={"trusted_key_servers": [notary.server_name]})
    room = simulated.create_room("10", members=30)
    joined = await ours.join(room, via=[other.server_name])
    # All it refuses is to be the notary: the server whose keys it knows is gone.
    notary.faults.refuse("query_keys", 503)

    await ours.resync()

    notary.faults.clear()
    await ours.run("trigger", room.room_id)
    await ours.resync()
    check_truth(ours, room, joined.join_event_id, [])


def add_dead_servers(count: int) -> Callable[[Any], Any]:
    """Lie about who is in the room, beside those who are."""

    def tell(answer: Any) -> Any:
        names = [b'"dead%d.invalid"' % number for number in range(count)]
        return answer.with_field("servers_in_room", [*answer.items("servers_in_room"), *names])

    return tell


async def test_the_servers_of_other_rooms_are_not_asked(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Nor are those that have not been named by the resident."""
    first, second = simulated.residents
    room = simulated.create_room("10", members=0)
    await ours_on_sqlite.join(room)
    first.faults.refuse("state_ids", 403)

    await ours_on_sqlite.resync()

    assert second.requests.count("state_ids") == 0
    assert second.server_name not in ours_on_sqlite.job(room)["last_error"]


async def test_progress_of_a_failed_attempt_is_kept(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """What a server sent before it broke off is not asked for again."""
    room = simulated.create_room("10", members=3000)
    joined = await ours_on_sqlite.join(room)
    first, second = simulated.residents
    first.faults.truncate("state", after=0.7)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert second.requests.count("state_ids") == 1
    outliers = "SELECT COUNT(*) FROM events WHERE outlier"
    assert ours_on_sqlite.query(outliers)[0][0] > 3000


@pytest.mark.parametrize("silent", ["state_ids", "state", "state midway", "event"])
async def test_a_silent_server_is_given_up_for_another(
    silent: str, simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    room = simulated.create_room("10", members=40)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    if silent == "state midway":
        resident.faults.stall_midway("state")
    else:
        resident.faults.stall(silent)

    await ours_on_sqlite.resync(silence=0.5)

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert other.requests.count(silent.partition(" ")[0]) >= 1
    assert _retry_interval(ours_on_sqlite, resident) > 0 or silent == "event"


def _retry_interval(ours: OurServer, resident: Resident) -> int:
    rows = dict(ours.query("SELECT destination, retry_interval FROM destinations"))
    return rows.get(resident.server_name) or 0


async def test_a_slow_server_that_is_sending_is_waited_for(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Silence ends a request, length does not."""
    room = simulated.create_room("10", members=40)
    joined = await ours_on_sqlite.join(room)
    resident, other = simulated.residents
    resident.faults.stall("state_ids", seconds=0.5)
    for share in (0.2, 0.4, 0.6, 0.8):
        resident.faults.stall_midway("state", after=share, seconds=0.5)

    await ours_on_sqlite.resync(silence=1.5)

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert other.requests.count("state_ids") == 0


# -- addresses and certificates ------------------------------------------------------------------


async def test_a_deny_listed_address_is_not_connected_to(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    ours = make_ours(sqlite_url, federation={"ip_range_allowlist": []})
    room = simulated.create_room("10", members=5)
    nothing = ours.contents()

    with pytest.raises(JoinFailed, match=r"127\.0\.0\.1.*(den|not allowed|block)"):
        await ours.join(room)

    assert ours.contents() == nothing
    assert simulated.residents[0].requests == []


async def test_deny_listed_servers_of_a_room_are_left_out(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """A resident that names the neighbours of our database gets nobody to connect to them."""
    neighbours = ["10.0.0.1:5432", "192.168.0.1", "169.254.169.254:80", "[::1]:22"]
    room = simulated.create_room("10", members=5)
    first, second = simulated.residents
    first.faults.lie(
        "send_join",
        lambda answer: answer.with_field(
            "servers_in_room",
            [b'"%s"' % name.encode() for name in (*neighbours, second.server_name)],
        ),
    )
    joined = await ours_on_sqlite.join(room)
    first.faults.refuse("state_ids", 403)

    await ours_on_sqlite.resync()

    check_truth(ours_on_sqlite, room, joined.join_event_id, [])
    assert second.requests.count("state_ids") == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    ours = make_ours(sqlite_url, federation={"verify_certificates": True})
    room = simulated.create_room("10", members=5)
    nothing = ours.contents()

    with pytest.raises(JoinFailed, match=r"(?i)certificate"):
        await ours.join(room)

    assert ours.contents() == nothing
    assert simulated.residents[0].requests == []


async def test_the_resync_waits_when_certificates_go_bad(
    simulated: SimulatedFederation, sqlite_url: str, make_ours: Callable[..., OurServer]
) -> None:
    ours = make_ours(sqlite_url)
    room = simulated.create_room("10", members=5)
    await ours.join(room)
    strict = make_ours(sqlite_url, federation={"verify_certificates": True})

    await strict.resync()

    shown = await strict.status(room)
    assert shown["state"] == "backoff"
    assert "certificate" in shown["last_error"].lower()
    assert strict.rejected(room) == set()
    assert simulated.residents[0].requests.count("state_ids") == 0


async def test_the_client_can_be_asked_for_what_a_resident_refuses(
    simulated: SimulatedFederation, ours_on_sqlite: OurServer
) -> None:
    """Who is not in a room learns nothing of it: what these tests rest on."""
    room = simulated.create_room("10", members=5)
    async with ours_on_sqlite.worker() as worker:
        with pytest.raises(HttpError) as refused:
            await worker._fetcher.client.state_ids(
                simulated.server_names[0], room.room_id, next(iter(room.events))
            )
    assert refused.value.status == 403
    assert ALICE not in str(refused.value)
