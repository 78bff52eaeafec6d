"""A real Synapse on loopback, as a separate process in a virtual environment of its own.

`SynapseServer` writes the configuration, starts the process, waits until it answers and stops
it. `User` speaks the client-server API to it, only as far as the tests need.
Nothing of Synapse is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import yaml

from tests.interop.loopback import (
    ApiError,
    HttpsConnection,
    free_port,
    postgresql_database,
    write_certificate,
    write_signing_key,
)

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT = 120.0
"""Seconds. A cold start with an empty database takes about five on an idle machine."""
STOP_TIMEOUT = 15.0


class SynapseError(Exception):
    """Synapse could not be started, or ended by itself."""


def synapse_python() -> Path:
    """The interpreter that has Synapse: `SYNAPSE_PYTHON`, or `.venv-synapse`'s."""
    override = os.environ.get("SYNAPSE_PYTHON")
    python = Path(override) if override else REPOSITORY / ".venv-synapse" / "bin" / "python"
    if not python.exists():
        raise SynapseError(
            f"{python} does not exist. `make interop` creates the virtual environment that the "
            "interoperability tests run Synapse in; SYNAPSE_PYTHON names another one."
        )
    return python


class SynapseServer:
    """One Synapse process.

    Args:
        directory: for its configuration, database, media and log; must exist.
        postgresql_url: a PostgreSQL server to create its database on. None: SQLite.
        extra_config: keys laid over the generated configuration, which is `config`.
        extra_listeners: listeners besides the TLS one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        postgresql_url: str | None = None,
        extra_config: Mapping[str, Any] | None = None,
        extra_listeners: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.server_name = f"localhost:{self.port}"
        self.log_path = directory / "homeserver.log"
        self._output_path = directory / "homeserver.out"
        self._config_path = directory / "homeserver.yaml"
        self._postgresql_url = postgresql_url
        self._extra_config = dict(extra_config or {})
        self._extra_listeners = list(extra_listeners)
        self._shared_secret = os.urandom(16).hex()
        self.config: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup = contextlib.ExitStack()
        self._connection = HttpsConnection("localhost", self.port)
        self._transaction = 0

    def __enter__(self) -> SynapseServer:
        try:
            self._write_config()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The process

    def start(self) -> None:
        """Starts the process and waits until it answers.

        Raises:
            SynapseError: it ended, or did not answer in time; with the tail of its log.
        """
        with self._output_path.open("ab") as output:
            self._process = subprocess.Popen(
                [str(synapse_python()), "-m", "synapse.app.homeserver", "-c", self._config_path],
                cwd=self.directory,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError, ApiError):
                self.request("GET", "/_matrix/client/versions")
                return
            if self._process.poll() is not None:
                raise SynapseError(
                    f"Synapse ended with {self._process.returncode}\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise SynapseError(
                    f"Synapse did not answer within {START_TIMEOUT} s\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for a process that does not end."""
        self._connection.close()
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def close(self) -> None:
        """Stops the process and drops the database, if it has one of its own."""
        try:
            self.stop()
        finally:
            self._cleanup.close()

    def log_lines(self) -> list[str]:
        """What the process has logged, one line for each request it answered among it."""
        return self.log_path.read_text(errors="replace").splitlines()

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of what the process printed and logged."""
        parts = []
        for path in (self._output_path, self.log_path):
            if path.exists():
                tail = path.read_text(errors="replace").splitlines()[-lines:]
                parts.append("\n".join([f"--- {path}", *tail]))
        return "\n".join(parts)

    def _write_config(self) -> None:
        certificate_path, key_path = write_certificate(self.directory)
        write_signing_key(self.directory / "signing.key")
        log_config = {
            "version": 1,
            "formatters": {
                "line": {"format": "%(asctime)s %(levelname)s %(name)s %(request)s %(message)s"}
            },
            "filters": {"context": {"()": "synapse.logging.context.LoggingContextFilter"}},
            "handlers": {
                "file": {
                    "class": "logging.FileHandler",
                    "filename": str(self.log_path),
                    "formatter": "line",
                    "filters": ["context"],
                }
            },
            "root": {"level": "INFO", "handlers": ["file"]},
            "disable_existing_loggers": False,
        }
        (self.directory / "log.yaml").write_text(yaml.safe_dump(log_config))
        unlimited = {"per_second": 100_000, "burst_count": 100_000}
        self.config = {
            "server_name": self.server_name,
            "pid_file": str(self.directory / "homeserver.pid"),
            "public_baseurl": f"https://{self.server_name}/",
            "listeners": [
                {
                    "type": "http",
                    "port": self.port,
                    "bind_addresses": ["127.0.0.1"],
                    "tls": True,
                    "resources": [{"names": ["client", "federation"], "compress": False}],
                },
                *self._extra_listeners,
            ],
            "tls_certificate_path": str(certificate_path),
            "tls_private_key_path": str(key_path),
            "signing_key_path": str(self.directory / "signing.key"),
            "media_store_path": str(self.directory / "media"),
            "log_config": str(self.directory / "log.yaml"),
            "database": self._database_config(),
            "registration_shared_secret": self._shared_secret,
            "macaroon_secret_key": os.urandom(16).hex(),
            "form_secret": os.urandom(16).hex(),
            "report_stats": False,
            "enable_metrics": False,
            "bcrypt_rounds": 4,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "federation_verify_certificates": False,
            "ip_range_blacklist": [],
            "federation_ip_range_blacklist": [],
            "presence": {"enabled": False},
            "user_directory": {"enabled": False},
            # Out of the way: what a person would be slowed down for.
            "rc_message": unlimited,
            "rc_registration": unlimited,
            "rc_login": {"address": unlimited, "account": unlimited, "failed_attempts": unlimited},
            "rc_joins": {"local": unlimited, "remote": unlimited},
            "rc_joins_per_room": unlimited,
            "rc_invites": {
                "per_room": unlimited,
                "per_user": unlimited,
                "per_issuer": unlimited,
            },
            "rc_room_creation": unlimited,
            "rc_profile": unlimited,
            "rc_key_requests": unlimited,
            "rc_federation": {
                "window_size": 1000,
                "sleep_limit": 100_000,
                "sleep_delay": 1,
                "reject_limit": 100_000,
                "concurrent": 100,
            },
            # A server that is down for a moment in a test is tried again soon.
            "federation": {
                "destination_min_retry_interval": "1s",
                "destination_retry_multiplier": 2,
                "destination_max_retry_interval": "2s",
            },
        }
        self.config.update(self._extra_config)
        self._config_path.write_text(yaml.safe_dump(self.config))

    def _database_config(self) -> dict[str, Any]:
        if self._postgresql_url is None:
            return {"name": "sqlite3", "args": {"database": str(self.directory / "homeserver.db")}}
        url = self._cleanup.enter_context(
            postgresql_database(self._postgresql_url, "interop_synapse")
        )
        return {"name": "psycopg2", "args": {"dsn": url, "cp_min": 2, "cp_max": 5}}

    # Requests

    def request(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """A request to the client-server or admin API.

        Raises:
            ApiError: Synapse answered with an error.
            OSError: it does not answer.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._connection.request(method, path, body, headers)

    def next_transaction_id(self) -> str:
        self._transaction += 1
        return f"t{self._transaction}"

    def register(self, localpart: str, *, admin: bool = False) -> User:
        """A new user, made through the shared-secret registration of the admin API."""
        path = "/_synapse/admin/v1/register"
        nonce = self.request("GET", path)["nonce"]
        password = os.urandom(8).hex()
        fields = (nonce, localpart, password, "admin" if admin else "notadmin")
        digest = hmac.new(self._shared_secret.encode(), "\0".join(fields).encode(), hashlib.sha1)
        answer = self.request(
            "POST",
            path,
            {
                "nonce": nonce,
                "username": localpart,
                "password": password,
                "admin": admin,
                "mac": digest.hexdigest(),
            },
        )
        return User(self, answer["user_id"], answer["access_token"])


@dataclass(frozen=True)
class User:
    """A local user of a `SynapseServer`, and what it can do in a room."""

    server: SynapseServer
    user_id: str
    token: str = field(repr=False)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        return self.server.request(method, f"/_matrix/client/v3{path}", body, token=self.token)

    def create_room(self, room_version: str, **options: Any) -> str:
        """A new room; options as in the body of `/createRoom`. Returns the room id."""
        body = {"room_version": room_version, "preset": "public_chat", **options}
        return str(self.request("POST", "/createRoom", body)["room_id"])

    def _act(self, room_id: str, action: str, body: Mapping[str, Any]) -> Any:
        return self.request("POST", f"/rooms/{quote(room_id)}/{action}", body)

    def join(self, room_id: str) -> None:
        self._act(room_id, "join", {})

    def leave(self, room_id: str) -> None:
        self._act(room_id, "leave", {})

    def knock(self, room_id: str) -> None:
        self.request("POST", f"/knock/{quote(room_id)}", {})

    def invite(self, room_id: str, user_id: str) -> None:
        self._act(room_id, "invite", {"user_id": user_id})

    def kick(self, room_id: str, user_id: str) -> None:
        self._act(room_id, "kick", {"user_id": user_id, "reason": "interop"})

    def ban(self, room_id: str, user_id: str) -> None:
        self._act(room_id, "ban", {"user_id": user_id, "reason": "interop"})

    def unban(self, room_id: str, user_id: str) -> None:
        self._act(room_id, "unban", {"user_id": user_id})

    def send_message(self, room_id: str, text: str) -> str:
        """Returns the event id."""
        path = f"/rooms/{quote(room_id)}/send/m.room.message/{self.server.next_transaction_id()}"
        return str(self.request("PUT", path, {"msgtype": "m.text", "body": text})["event_id"])

    def send_state(
        self, room_id: str, event_type: str, content: Mapping[str, Any], state_key: str = ""
    ) -> str:
        """Returns the event id."""
        path = f"/rooms/{quote(room_id)}/state/{quote(event_type)}/{quote(state_key)}"
        return str(self.request("PUT", path, dict(content))["event_id"])

    def get_state(self, room_id: str, event_type: str, state_key: str = "") -> Any:
        """The content of one state event."""
        path = f"/rooms/{quote(room_id)}/state/{quote(event_type)}/{quote(state_key)}"
        return self.request("GET", path)

    def rename(self, room_id: str, display_name: str) -> None:
        """A new display name in this room only."""
        content = {"membership": "join", "displayname": display_name}
        self.send_state(room_id, "m.room.member", content, self.user_id)

    def change_power(self, room_id: str, **changes: Any) -> None:
        """Lays `changes` over the room's power levels; `users` and `events` are merged."""
        content = self.get_state(room_id, "m.room.power_levels")
        for name, value in changes.items():
            content[name] = {**content.get(name, {}), **value} if name in MERGED else value
        self.send_state(room_id, "m.room.power_levels", content)

    def room_state(self, room_id: str) -> dict[tuple[str, str], str]:
        """The room's current state, as event ids."""
        events = self.request("GET", f"/rooms/{quote(room_id)}/state")
        return {(event["type"], event["state_key"]): event["event_id"] for event in events}


MERGED = frozenset({"users", "events"})
