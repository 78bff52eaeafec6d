"""The processes of a resync benchmark: a simulated federation, a worker, a database, a sampler.

All of them are real and separate, as in operation, and talk over sockets on loopback.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import psycopg
import yaml
from sqlalchemy import URL, Connection, func, make_url, select

from federation.tls import self_signed_certificate
from resync.config import load_config
from storage import schema
from storage.database import Database

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
_METRIC = re.compile(r'^(\w+)(?:\{(?:\w+="([^"]*)",?)*\})? (\S+)$', re.MULTILINE)


class ProcessFailed(Exception):
    """A process of the benchmark did not do its part; the message has the end of its log."""


class Simulator:
    """`python -m federation.simulator` with one room."""

    def __init__(self, ready: dict[str, Any], process: subprocess.Popen[str]) -> None:
        self.server_names: list[str] = ready["servers"]
        self.room_id: str = ready["rooms"][0]["room_id"]
        self.pid = process.pid
        self._control = urlsplit(ready["control_url"]).netloc

    def requests(self) -> dict[str, int]:
        """How many requests the servers have answered, by endpoint."""
        counts: Counter[str] = Counter()
        for of_server in get_json(self._control, "/_simulator/requests")["requests"].values():
            counts.update(of_server)
        return dict(counts)


@contextlib.contextmanager
def simulator(*arguments: str) -> Iterator[Simulator]:
    """A simulation that is ready, until the block ends."""
    command = [sys.executable, "-m", "federation.simulator", "--until-stdin-closes", *arguments]
    with _running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ProcessFailed(f"the simulator ended with status {process.wait()}")
        yield Simulator(json.loads(line), process)


class Worker:
    """`resync worker` with its listeners on free ports."""

    def __init__(self, directory: Path, database: str, key_servers: Sequence[str]) -> None:
        self.directory = directory
        federation_port, admin_port = _free_ports(2)
        self.server_name = f"127.0.0.1:{federation_port}"
        self.admin_port = admin_port
        self.config_path = directory / "resync.yaml"
        certificate = self_signed_certificate(["127.0.0.1"])
        (directory / "tls.crt").write_bytes(certificate.certificate)
        (directory / "tls.key").write_bytes(certificate.private_key)
        self.config_path.write_text(
            yaml.safe_dump(
                {
                    "server_name": self.server_name,
                    "database": database,
                    "federation": {
                        "listen": {
                            "port": federation_port,
                            "tls_certificate_path": "tls.crt",
                            "tls_private_key_path": "tls.key",
                        },
                        "verify_certificates": False,
                        "ip_range_allowlist": ["127.0.0.0/8"],
                        "trusted_key_servers": list(key_servers),
                    },
                    "replication": {"tcp": None},
                    "spark": None,
                    "admin": {"port": admin_port},
                }
            ),
            encoding="utf-8",
        )
        self.pid = 0

    @property
    def admin(self) -> str:
        """Host and port of the admin listener."""
        return f"127.0.0.1:{self.admin_port}"

    def join(self, room_id: str, via: str) -> None:
        """A partial join, which makes the resync due."""
        wish = {"room_id": room_id, "user_id": f"@bench:{self.server_name}", "via": [via]}
        joined = post_json(self.admin, "/_resync/admin/v1/join", wish, token=self._token())
        if not joined.get("partial"):
            raise ProcessFailed(f"the join was not partial: {joined}")

    def wait_until_complete(self, room_id: str, seconds: float) -> None:
        """Returns as soon as the room is fully stated. Raises `ProcessFailed`."""
        path = f"/_resync/admin/v1/rooms/{quote(room_id, safe='')}?wait={seconds}"
        room = get_json(self.admin, path, token=self._token(), timeout=seconds + 10)
        if room.get("state") != "complete":
            raise ProcessFailed(f"the room is not fully stated after {seconds} s: {room}")

    def metrics(self) -> dict[str, dict[str, float]]:
        """The worker's metrics: name to value of the last label to number."""
        connection = http.client.HTTPConnection(self.admin, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        found: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for match in _METRIC.finditer(text):
            found[match[1]][match[2] or ""] = float(match[3])
        return dict(found)

    def _token(self) -> str:
        return (self.directory / "admin.token").read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def worker(database: str, key_servers: Sequence[str]) -> Iterator[Worker]:
    """A worker on an empty database that is healthy, until the block ends.

    `database`: `sqlite` for a file, or the URL of a PostgreSQL server, on which a database is
    created.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resync-bench-")))
        url = "sqlite:///resync.db"
        if database != "sqlite":
            url = stack.enter_context(_postgresql_database(database))
        running = Worker(directory, url, key_servers)
        command = [sys.executable, "-m", "resync", "--config", str(running.config_path)]
        subprocess.run([*command, "migrate"], check=True, stdout=subprocess.DEVNULL)
        with (directory / "log").open("w", encoding="utf-8") as log:
            process = stack.enter_context(_running([*command, "worker"], stderr=log))
            running.pid = process.pid
            _wait_until_healthy(running.admin, process, directory / "log")
            yield running


@contextlib.contextmanager
def sampler(port: int, pid: int) -> Iterator[dict[str, float]]:
    """Watches the worker during the block; what it saw is in the mapping afterwards."""
    command = [sys.executable, "-m", "tests.benchmarks.sampler", str(port), str(pid)]
    seen: dict[str, float] = {}
    with _running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline() != "ready\n":
            raise ProcessFailed("the sampler did not start")
        yield seen
        process.stdin.close()
        seen.update(json.loads(process.stdout.readline()))


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process, and of its living descendants together."""
    process = psutil.Process(pid)
    own = process.cpu_times()
    of_children = 0.0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            of_children += times.user + times.system
    return own.user + own.system, of_children


class WorkerDatabase:
    """What can be learned from the database of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._url = make_url(load_config(worker.config_path, {}).database)

    def count_events(self, room_id: str) -> int:
        """How many events of the room are stored."""
        database = Database(self._url.render_as_string(hide_password=False))
        try:
            return database.read_sync(_count_events, room_id)
        finally:
            database.close_sync()

    def cpu_seconds(self) -> float:
        """CPU time so far of the PostgreSQL processes that serve the worker's connections.

        0 for SQLite, whose work is the worker's own, and for a server on another machine.
        """
        if self._url.get_backend_name() == "sqlite":
            return 0.0
        with psycopg.connect(_text(self._url), autocommit=True) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                [self._url.database],
            ).fetchall()
        total = 0.0
        for (pid,) in pids:
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total


def _count_events(connection: Connection, room_id: str) -> int:
    table = schema.events
    query = select(func.count()).select_from(table).where(table.c.room_id == room_id)
    return connection.scalar(query) or 0


def get_json(host: str, path: str, *, token: str = "", timeout: float = 30.0) -> dict[str, Any]:
    """The JSON object at a path. Raises `ProcessFailed` for any status but 200."""
    return _request_json("GET", host, path, None, token, timeout)


def post_json(
    host: str, path: str, content: Any, *, token: str = "", timeout: float = 60.0
) -> dict[str, Any]:
    """The JSON object that a POST is answered with."""
    return _request_json("POST", host, path, json.dumps(content), token, timeout)


def _request_json(
    method: str, host: str, path: str, body: str | None, token: str, timeout: float
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection(host, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
    if response.status >= 300:
        raise ProcessFailed(f"{method} {path} was answered with {response.status}: {text[:500]}")
    answer = json.loads(text)
    assert isinstance(answer, dict)
    return answer


def _wait_until_healthy(host: str, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ProcessFailed(f"the worker ended:\n{log.read_text(encoding='utf-8')[-2000:]}")
        with contextlib.suppress(OSError, ProcessFailed):
            get_json(host, "/health")
            return
        time.sleep(0.05)
    raise ProcessFailed(f"the worker does not answer:\n{log.read_text(encoding='utf-8')[-2000:]}")


@contextlib.contextmanager
def _postgresql_database(server: str) -> Iterator[str]:
    """A new database on a server, dropped afterwards. Collation C, as Synapse asks for."""
    server_url = make_url(server).set(drivername="postgresql")
    name = f"resync_bench_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(_text(server_url), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE {name} TEMPLATE template0 LC_COLLATE "C" LC_CTYPE "C"')
        try:
            yield _text(server_url.set(database=name))
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listening.getsockname()[1] for listening in sockets]


def _text(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextlib.contextmanager
def _running(command: Sequence[str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is told to end with the block."""
    process = subprocess.Popen(command, text=True, **streams)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
