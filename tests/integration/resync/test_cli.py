"""The command line as an operator has it: real processes, databases, sockets and homeservers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from federation.simulator import SimulatedFederation
from federation.simulator.certificates import write_certificate
from resync.commands.status import show_status
from resync.config import load_config
from storage import current_state
from storage.database import Database

TIMEOUT = 60


@dataclass
class Ended:
    code: int
    out: str
    err: str


class Operator:
    """Runs commands with one configuration."""

    def __init__(self, directory: Path, database_url: str) -> None:
        certificate = write_certificate(directory)
        self.federation_port, self.admin_port, replication_port = free_ports(3)
        self.server_name = f"127.0.0.1:{self.federation_port}"
        self.user = f"@alice:{self.server_name}"
        self.database_url = database_url
        self.directory = directory
        self.config_path = directory / "resync.yaml"
        self.config = {
            "server_name": self.server_name,
            "database": database_url,
            "federation": {
                "listen": {
                    "port": self.federation_port,
                    "tls_certificate_path": str(certificate.certificate),
                    "tls_private_key_path": str(certificate.private_key),
                },
                "verify_certificates": False,
                "ip_range_allowlist": ["127.0.0.0/8"],
            },
            "replication": {"tcp": {"port": replication_port}},
            "admin": {"port": self.admin_port},
            "resync": {"backoff_min_seconds": 600.0},
            "verification": {"processes": 1},
            "spark": None,
        }
        self.write_config()

    def write_config(self) -> None:
        self.config_path.write_text(yaml.safe_dump(self.config))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RESYNC_")
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "resync",
            *arguments,
            "--config",
            str(self.config_path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def run(self, *arguments: str) -> Ended:
        process = await self.start(*arguments)
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    async def done(self, *arguments: str) -> str:
        ended = await self.run(*arguments)
        assert ended.code == 0, ended.err
        return ended.out

    async def failed(self, *arguments: str) -> str:
        ended = await self.run(*arguments)
        assert ended.code == 1, (ended.out, ended.err)
        assert "Traceback" not in ended.err
        return ended.err

    async def status(self) -> list[dict]:
        """What `resync status --json` prints, without the price of another process."""
        out = io.StringIO()
        await show_status(load_config(self.config_path, {}), None, as_json=True, out=out)
        rooms: list[dict] = json.loads(out.getvalue())["rooms"]
        return rooms

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A worker process that is up; ended by SIGTERM, which must be clean."""
        process = await self.start("worker")
        try:
            await self._wait_until_healthy(process)
            yield process
            process.send_signal(signal.SIGTERM)
            _, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
            assert process.returncode == 0, err.decode()
            assert b"Traceback" not in err
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _wait_until_healthy(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(TIMEOUT), aiohttp.ClientSession() as session:
            while True:
                assert process.returncode is None, "the worker ended"
                with contextlib.suppress(aiohttp.ClientError):
                    url = f"http://127.0.0.1:{self.admin_port}/health"
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.05)

    async def load_state(self, room_id: str) -> dict[tuple[str, str], str]:
        database = Database(self.database_url)
        try:
            return dict(await database.read(current_state.load_current_state, room_id))
        finally:
            await database.close()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture
def operator(tmp_path: Path, database_url: str) -> Operator:
    return Operator(tmp_path, database_url)


@pytest.fixture
def small_operator(tmp_path: Path, sqlite_url: str) -> Operator:
    """For what does not depend on the kind of database."""
    return Operator(tmp_path, sqlite_url)


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedFederation]:
    async with SimulatedFederation(servers=2) as simulated:
        yield simulated


async def test_migrate(tmp_path, empty_database_url):
    operator = Operator(tmp_path, empty_database_url)
    for command in (["status"], ["worker", "--once"], ["trigger", "!a:b"]):
        assert "run `resync migrate`" in await operator.failed(*command)
    assert "(before: empty)" in await operator.done("migrate")
    assert "already" in await operator.done("migrate")
    assert await operator.done("status") == "No room was partially joined here yet.\n"
    assert json.loads(await operator.done("status", "--json")) == {"rooms": []}


async def test_join_and_wait_without_a_worker(operator, simulated):
    room = simulated.create_room("10", members=40)
    said = await operator.run(
        "join", room.room_id, "--via", simulated.server_names[0], "--user", operator.user, "--wait"
    )
    assert said.code == 0, said.err
    assert f"Joined {room.room_id} partially" in said.out
    assert said.out.endswith(f"{room.room_id} is fully stated.\n")
    assert f"{room.room_id}: fully stated" in said.err
    [shown] = await operator.status()
    assert (shown["state"], shown["partial_events"]) == ("complete", 0)
    assert await operator.load_state(room.room_id) == room.current_state()
    # Joining again changes nothing.
    again = await operator.run(
        "join", room.room_id, "--via", simulated.server_names[0], "--user", operator.user, "--wait"
    )
    assert again.code == 0, again.err
    assert await operator.load_state(room.room_id) == room.current_state()


async def test_join_without_waiting_leaves_the_rest_to_a_worker(operator, simulated):
    room = simulated.create_room("12", members=40)
    via = simulated.server_names[0]
    out = await operator.done("join", room.room_id, "--via", via, "--user", operator.user)
    assert "`resync worker` does the rest" in out
    [shown] = json.loads(await operator.done("status", room.room_id, "--json"))["rooms"]
    assert shown["state"] == "queued"
    assert shown["joined_via"] == via
    assert shown["partial_events"] == 1
    assert shown["servers"] == 2
    text = await operator.done("status")
    assert f"{room.room_id}  queued" in text
    await operator.done("worker", "--once")
    assert [shown["state"] for shown in await operator.status()] == ["complete"]
    assert await operator.load_state(room.room_id) == room.current_state()


async def test_join_through_a_running_worker(operator, simulated):
    rooms = [simulated.create_room(version, members=40) for version in ("10", "11")]
    async with operator.worker() as worker:
        for room in rooms:
            out = await operator.done(
                "join",
                room.room_id,
                "--via",
                simulated.server_names[0],
                "--user",
                operator.user,
                "--wait",
            )
            assert out.endswith(f"{room.room_id} is fully stated.\n")
            assert worker.returncode is None
        refused = await operator.failed(
            "join", "!none:example.com", "--via", simulated.server_names[0], "--user", operator.user
        )
        assert simulated.server_names[0] in refused
    assert [shown["state"] for shown in await operator.status()] == ["complete", "complete"]
    for room in rooms:
        assert await operator.load_state(room.room_id) == room.current_state()


async def test_leave_and_purge_through_a_running_worker(operator, simulated):
    room = simulated.create_room("10", members=40)
    via = simulated.server_names[0]
    for resident in simulated.residents:
        resident.faults.stall("state_ids")
    async with operator.worker():
        await operator.done("join", room.room_id, "--via", via, "--user", operator.user)
        out = await operator.done("leave", room.room_id, operator.user)
        assert out.startswith(f"{operator.user} left {room.room_id}: event $")
        async with asyncio.timeout(TIMEOUT):
            while room.membership(operator.user) != "leave":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert room.room_id in await operator.failed("leave", room.room_id, operator.user)
        assert await operator.status() == []
        assert await operator.done("purge", room.room_id) == f"Purged {room.room_id}\n"
        assert room.room_id in await operator.failed("purge", room.room_id)


async def test_leave_and_purge_without_a_worker(small_operator, simulated):
    operator = small_operator
    room = simulated.create_room("10", members=40)
    join = ["join", room.room_id, "--via", simulated.server_names[0], "--user", operator.user]
    await operator.done(*join)
    out = await operator.done("leave", room.room_id, operator.user)
    assert "left" in out
    assert "could not be told" not in out
    assert room.membership(operator.user) == "leave"
    await operator.done(*join)
    for resident in simulated.residents:
        resident.faults.refuse("send", 500)
    out = await operator.done("leave", room.room_id, operator.user)
    assert "2 servers could not be told: `resync worker` tries them again" in out
    await operator.done("purge", room.room_id)
    assert room.room_id in await operator.failed("purge", room.room_id)
    assert await operator.status() == []


async def test_a_room_waits_until_its_servers_are_back(small_operator, simulated):
    operator = small_operator
    room = simulated.create_room("11", members=40)
    via = simulated.server_names[0]
    await operator.done("join", room.room_id, "--via", via, "--user", operator.user)
    for resident in simulated.residents:
        await resident.disappear()
    await operator.done("worker", "--once")
    [shown] = await operator.status()
    assert shown["state"] == "backoff"
    assert shown["attempts"] == 1
    assert shown["last_error_server"] == via
    assert shown["next_attempt_ts"] > shown["updated_ts"]
    text = await operator.done("status", room.room_id)
    assert f"last error at {via}: " in text
    assert "next attempt in " in text
    for resident in simulated.residents:
        await resident.come_back()
    # It is not due yet.
    await operator.done("worker", "--once")
    assert [shown["state"] for shown in await operator.status()] == ["backoff"]
    assert "is due now" in await operator.done("trigger", room.room_id)
    await operator.done("worker", "--once")
    assert [shown["state"] for shown in await operator.status()] == ["complete"]
    assert await operator.load_state(room.room_id) == room.current_state()
    assert "is fully stated" in await operator.failed("trigger", room.room_id)


async def test_a_join_that_nobody_grants_leaves_nothing(small_operator, simulated):
    operator = small_operator
    room = simulated.create_room("11", members=3)
    resident = simulated.residents[0]
    resident.faults.refuse("send_join")
    said = await operator.failed(
        "join", room.room_id, "--via", resident.server_name, "--user", operator.user, "--wait"
    )
    assert "M_FORBIDDEN" in said
    assert resident.server_name in said
    assert await operator.status() == []


async def test_rooms_that_are_unknown(small_operator):
    operator = small_operator
    for command in ("status", "trigger"):
        said = await operator.failed(command, "!none:example.com")
        assert said == "resync: !none:example.com is not a room that was partially joined here\n"


@pytest.mark.parametrize("section", ["federation.listen", "admin", "replication.tcp"])
async def test_a_port_that_is_taken(small_operator, section):
    operator = small_operator
    part = operator.config
    for key in section.split("."):
        part = part[key]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", part["port"]))
        taken.listen()
        said = await operator.failed("worker")
    assert f"{part['port']}" in said
    assert section in said


async def test_a_database_that_is_not_there(small_operator):
    operator = small_operator
    [port] = free_ports(1)
    operator.config["database"] = f"postgresql://user:hunter2@127.0.0.1:{port}/name"
    operator.write_config()
    for command in ("status", "migrate", "worker"):
        said = await operator.failed(command)
        assert "cannot use the database" in said
        assert "hunter2" not in said


async def test_a_worker_stopped_in_the_middle_goes_on_later(small_operator, simulated):
    operator = small_operator
    room = simulated.create_room("10", members=40)
    for resident in simulated.residents:
        resident.faults.stall("state_ids", times=1)
    await operator.done(
        "join",
        room.room_id,
        "--via",
        simulated.server_names[0],
        "--user",
        operator.user,
    )
    async with operator.worker():
        async with asyncio.timeout(TIMEOUT):
            while not simulated.residents[0].requests.of("state_ids"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        [shown] = await operator.status()
        assert (shown["state"], shown["worker"]) == ("running", "resync1")
    # Its lease was handed back: nobody has to wait for it to expire.
    assert [shown["state"] for shown in await operator.status()] == ["queued"]
    for resident in simulated.residents:
        resident.faults.clear()
    await operator.done("worker", "--once")
    assert [shown["state"] for shown in await operator.status()] == ["complete"]


async def test_a_join_that_is_interrupted_while_it_waits(small_operator, simulated):
    operator = small_operator
    room = simulated.create_room("10", members=40)
    for resident in simulated.residents:
        resident.faults.stall("state_ids")
    via = simulated.server_names[0]
    process = await operator.start(
        "join", room.room_id, "--via", via, "--user", operator.user, "--wait"
    )
    async with asyncio.timeout(TIMEOUT):
        while not simulated.residents[0].requests.of("state_ids"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    assert process.returncode == 130
    assert err.decode().endswith("resync: stopped; what was done so far is kept\n")
    assert b"Traceback" not in err
    assert [shown["state"] for shown in await operator.status()] == ["queued"]
