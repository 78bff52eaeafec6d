"""The admin API of a real worker: its database, its resyncs, its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from federation.signing import generate_signing_key, write_signing_key
from federation.simulator import SimulatedFederation
from resync.config import Config
from resync.worker import Worker

API = "/_resync/admin/v1"


class Client:
    """Requests to the admin listener of the worker under test."""

    def __init__(self, session: aiohttp.ClientSession, config: Config) -> None:
        self._session = session
        self._config = config
        assert config.admin is not None
        self._base = f"http://127.0.0.1:{config.admin.port}"
        self._token_path = config.admin.token_path

    async def ask(self, method: str, path: str, **how: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token_path.read_text().strip()}"}
        async with self._session.request(
            method, self._base + path, headers=headers, **how
        ) as response:
            return response.status, await response.json()

    async def metrics(self) -> dict[str, float]:
        async with self._session.get(self._base + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if not line.startswith("#")
        }

    async def wait_until_healthy(self) -> None:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with self._session.get(self._base + "/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.02)


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedFederation]:
    async with SimulatedFederation(servers=2) as simulated:
        yield simulated


@pytest.fixture
async def client(
    tmp_path: Path, database_url: str, simulated: SimulatedFederation, unused_tcp_port: int
) -> AsyncIterator[Client]:
    """The admin listener of a worker that runs in this process, until the test ends."""
    config = Config.model_validate(
        {
            "server_name": "us.example",
            "database": database_url,
            "signing_key_path": tmp_path / "signing.key",
            "federation": {
                "listen": None,
                "verify_certificates": False,
                "ip_range_allowlist": ["127.0.0.0/8"],
            },
            "replication": {"tcp": None},
            "admin": {"port": unused_tcp_port, "token_path": tmp_path / "admin.token"},
            "resync": {"backoff_min_seconds": 600.0},
            "verification": {"processes": 1},
            "spark": None,
        }
    )
    key = generate_signing_key()
    write_signing_key(config.signing_key_path, key)
    simulated.trust(config.server_name, key.key_id, key.verify_key)
    async with Worker.open(config) as worker, aiohttp.ClientSession() as session:
        work = asyncio.create_task(worker.run())
        client = Client(session, config)
        try:
            waiting = asyncio.create_task(client.wait_until_healthy())
            await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            await waiting
            yield client
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def join(simulated: SimulatedFederation, room_id: str) -> dict[str, Any]:
    return {
        "room_id": room_id,
        "user_id": "@alice:us.example",
        "via": simulated.server_names[:1],
    }


async def test_a_room_from_join_to_fully_stated(client, simulated):
    room = simulated.create_room("11", members=40)
    path = f"{API}/rooms/{quote(room.room_id, safe='')}"
    assert (await client.ask("GET", path))[0] == 404
    for resident in simulated.residents:
        resident.faults.stall("state_ids", times=1)
    status, joined = await client.ask("POST", f"{API}/join", json=join(simulated, room.room_id))
    assert (status, joined["partial"], joined["servers"]) == (202, True, 2)
    assert joined["join_event_id"] in room.events
    # It cannot be finished while the server keeps silent.
    status, shown = await client.ask("GET", f"{path}?wait=0.3")
    assert (status, shown["partial_events"]) == (200, 1)
    assert shown["state"] in ("queued", "running")
    waiting = asyncio.create_task(client.ask("GET", f"{path}?wait=60"))
    for resident in simulated.residents:
        resident.faults.clear()
    status, shown = await waiting
    assert (status, shown["state"], shown["partial_events"]) == (200, "complete", 0)
    assert shown["completed_ts"] >= shown["created_ts"]
    assert shown["next_attempt_ts"] is None
    status, body = await client.ask("POST", f"{path}/resync")
    assert (status, body["errcode"]) == (409, "M_UNKNOWN")
    async with asyncio.timeout(30):
        # The lease is handed back after the room was announced.
        while 'resync_leases_total{result="released"}' not in (figures := await client.metrics()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert figures['resync_rooms{state="complete"}'] == 1
    assert figures['resync_joins_total{kind="partial"}'] == 1
    assert figures['resync_attempts_total{result="complete"}'] == 1
    assert figures['resync_leases_total{result="acquired"}'] == 1
    assert figures["resync_leases_held"] == 0
    assert figures['resync_stage_seconds_total{stage="verify"}'] > 0
    assert figures["resync_event_loop_lag_seconds_count"] > 0


async def test_a_room_in_backoff_is_finished_when_triggered(client, simulated):
    room = simulated.create_room("10", members=40)
    path = f"{API}/rooms/{quote(room.room_id, safe='')}"
    for resident in simulated.residents:
        resident.faults.refuse("state_ids", status=503, errcode="M_UNKNOWN")
    await client.ask("POST", f"{API}/join", json=join(simulated, room.room_id))
    async with asyncio.timeout(30):
        while (shown := (await client.ask("GET", path))[1])["state"] != "backoff":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert shown["attempts"] == 1
    assert shown["last_error"]
    assert shown["last_error_server"] in simulated.server_names
    assert (await client.metrics())['resync_rooms{state="backoff"}'] == 1
    for resident in simulated.residents:
        resident.faults.clear()
    waiting = asyncio.create_task(client.ask("GET", f"{path}?wait=60"))
    assert await client.ask("POST", f"{path}/resync") == (
        202,
        {"room_id": room.room_id, "state": "queued"},
    )
    assert (await waiting)[1]["state"] == "complete"


async def test_rooms_are_listed_in_pages(client, simulated):
    rooms = [simulated.create_room("10", members=2) for _ in range(5)]
    for room in rooms:
        status, _ = await client.ask("POST", f"{API}/join", json=join(simulated, room.room_id))
        assert status == 202
    seen = []
    path = f"{API}/rooms?limit=2"
    while True:
        _, body = await client.ask("GET", path)
        seen += [shown["room_id"] for shown in body["rooms"]]
        if "next_token" not in body:
            break
        path = f"{API}/rooms?limit=2&from={quote(body['next_token'], safe='')}"
    assert seen == [room.room_id for room in rooms]
    status, body = await client.ask("GET", f"{API}/rooms?from=nonsense")
    assert (status, body["errcode"]) == (400, "M_INVALID_PARAM")


async def test_a_join_that_is_refused(client, simulated):
    room = simulated.create_room("11", members=3)
    simulated.residents[0].faults.refuse("make_join")
    status, body = await client.ask("POST", f"{API}/join", json=join(simulated, room.room_id))
    assert (status, body["errcode"]) == (502, "M_UNKNOWN")
    assert simulated.server_names[0] in body["error"]
    assert await client.ask("GET", f"{API}/rooms") == (200, {"rooms": []})
