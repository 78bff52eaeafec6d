"""The simulator as a process of its own, steered over its control endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import aiohttp
import pytest

from federation.tls import client_tls_context
from tests.integration.federation.simulator_client import JoiningServer


@contextlib.asynccontextmanager
async def simulator(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "federation.simulator",
        *arguments,
        "--until-stdin-closes",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            yield process, json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.stdin.close()
            async with asyncio.timeout(10):
                await process.wait()
    assert process.returncode == 0


class Control:
    def __init__(self, session, url):
        self._session = session
        self._url = url

    async def __call__(self, method, path, status=200, **asked):
        how = {"params": asked} if method == "GET" else {"json": asked}
        async with self._session.request(
            method, f"{self._url}/_simulator/{path}", **how
        ) as response:
            body = await response.json()
            assert response.status == status, body
            return body


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def test_another_process_joins_sets_faults_and_compares(session):
    options = ["--members", "30", "--servers", "2", "--unreachable", "1", "--forks", "2"]
    async with simulator(*options, "--renames", "2", "--seed", "3") as (_, ready):
        control = Control(session, ready["control_url"])
        [room] = ready["rooms"]
        room_id = room["room_id"]
        near, far = ready["servers"]
        assert [int(name.split(":")[1]) for name in ready["servers"]] == ready["ports"]

        server = JoiningServer(session, client_tls_context(ca_path=ready["ca_path"]))
        await control(
            "POST",
            "trust",
            server_name=server.server_name,
            key_id=server.key.key_id,
            verify_key=server.key.verify_key_base64,
        )
        event_id, _ = await server.join(near, room_id, room["room_version"])
        truth = (await control("GET", "state", room_id=room_id, event_id=event_id))["state"]
        told = (await server.about(near, "state_ids", room_id, event_id)).json["pdu_ids"]
        assert sorted(told) == sorted(state_id for _, _, state_id in truth)
        assert len(truth) > 30

        sent = await control(
            "POST", "send", room_id=room_id, type="m.room.topic", state_key="",
            content={"topic": "New"},
        )  # fmt: skip
        after = await control(
            "GET", "state", room_id=room_id, event_id=sent["event_id"], when="after"
        )
        assert ["m.room.topic", "", sent["event_id"]] in after["state"]
        assert after == await control("GET", "state", room_id=room_id)
        events = (await control("GET", "events", room_id=room_id))["events"]
        assert events[-1]["event_id"] == sent["event_id"]
        assert events[-1]["prev_events"] == [event_id]

        await control(
            "POST", "faults", server=near, endpoint="state_ids", kind="refuse", times=1,
            arguments={"status": 500},
        )  # fmt: skip
        await control(
            "POST", "faults", server=far, endpoint="state_ids", kind="lie",
            arguments={"lie": "only", "field": "pdu_ids", "count": 1},
        )  # fmt: skip
        assert (await server.about(near, "state_ids", room_id, event_id)).status == 500
        assert (await server.about(near, "state_ids", room_id, event_id)).status == 200
        lied = (await server.about(far, "state_ids", room_id, event_id)).json
        assert len(lied["pdu_ids"]) == 1
        await control("DELETE", "faults")
        told = (await server.about(far, "state_ids", room_id, event_id)).json["pdu_ids"]
        assert len(told) == len(truth)

        await control("POST", "disappear", server=near)
        with pytest.raises(aiohttp.ClientConnectorError):
            await server.about(near, "state_ids", room_id, event_id)
        await control("POST", "come_back", server=near)
        assert (await server.about(near, "state_ids", room_id, event_id)).status == 200
        counts = (await control("GET", "requests", server=near))["requests"][near]
        assert counts == {"make_join": 1, "send_join": 1, "state_ids": 4}

        created = await control("POST", "rooms", room_version="12", members=3, mix={"left": 0})
        listed = (await control("GET", "rooms"))["rooms"]
        assert [entry["room_id"] for entry in listed] == [room_id, created["room_id"]]


async def test_wrong_requests_are_explained(session):
    async with simulator("--members", "2") as (_, ready):
        control = Control(session, ready["control_url"])
        room_id = ready["rooms"][0]["room_id"]
        for status, method, path, asked in (
            (404, "GET", "state", {"room_id": "!unknown:here.test"}),
            (404, "GET", "state", {"room_id": room_id, "event_id": "$nowhere"}),
            (404, "POST", "disappear", {"server": "nobody.test"}),
            (404, "POST", "faults", {"endpoint": "state", "kind": "nonsense"}),
            (400, "POST", "faults", {"endpoint": "nonsense", "kind": "refuse"}),
            (400, "POST", "faults", {"endpoint": "*", "kind": "stall", "arguments": {"x": 1}}),
            (400, "POST", "rooms", {"room_version": "99"}),
            (404, "POST", "send", {"room_id": room_id}),
        ):
            answer = await control(method, path, status, **asked)
            assert answer["errcode"].startswith("M_")
            assert answer["error"]


async def test_the_same_seed_and_ports_give_the_same_room(session):
    async with simulator("--members", "5") as (_, ready):
        ports = [str(port) for port in ready["ports"]]
        first = ready["rooms"]
    async with simulator("--members", "5", "--ports", *ports) as (_, ready):
        assert ready["rooms"] == first


async def test_a_signal_ends_it():
    async with simulator("--members", "2") as (process, _):
        process.terminate()
        async with asyncio.timeout(10):
            assert await process.wait() == 0
