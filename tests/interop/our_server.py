"""Our side of the interoperability tests: the installed `resync` command and its database.

The database is read with the test's own queries over the tables' published names, so that a
mistake in `storage` cannot hide itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy
import yaml

from tests.interop.federation_peer import FederationPeer
from tests.interop.loopback import free_port, write_certificate, write_signing_key
from tests.interop.synapse_server import SynapseServer

COMMAND_TIMEOUT = 120.0
State = dict[tuple[str, str], str]


class CommandError(Exception):
    """A `resync` command did not exit as it should; with what it printed."""


class OurServer:
    """A homeserver name, its key and its configuration, for the `resync` command.

    Args:
        directory: for configuration, keys, certificate and logs; must exist.
        database_url: an empty database.
        config: keys laid over the configuration.
    """

    def __init__(
        self, directory: Path, database_url: str, config: Mapping[str, Any] | None = None
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.server_name = f"localhost:{self.port}"
        self.signing_key = write_signing_key(directory / "signing.key")
        certificate_path, key_path = write_certificate(directory)
        self.config_path = directory / "resync.yaml"
        self.config: dict[str, Any] = {
            "server_name": self.server_name,
            "signing_key_path": str(directory / "signing.key"),
            "instance_name": "interop1",
            "database": database_url,
            "federation": {
                "listen": {
                    "bind": "127.0.0.1",
                    "port": self.port,
                    "tls_certificate_path": str(certificate_path),
                    "tls_private_key_path": str(key_path),
                },
                "verify_certificates": False,
                "ip_range_denylist": [],
            },
            "replication": {"tcp": {"bind": "127.0.0.1", "port": free_port()}},
            "admin": {
                "bind": "127.0.0.1",
                "port": free_port(),
                "token_path": str(directory / "admin.token"),
            },
        }
        for key, value in (config or {}).items():
            section = self.config.get(key)
            self.config[key] = {**section, **value} if isinstance(section, dict) else value
        self.config_path.write_text(yaml.safe_dump(self.config))
        self._database_url = sqlalchemy.make_url(database_url)
        if self._database_url.drivername == "postgresql":
            self._database_url = self._database_url.set(drivername="postgresql+psycopg")

    def user_id(self, localpart: str = "us") -> str:
        return f"@{localpart}:{self.server_name}"

    def peer(self, synapse: SynapseServer) -> FederationPeer:
        """For requests to `synapse` that are signed with our key but made by the test."""
        return FederationPeer(self.server_name, self.signing_key, synapse)

    # The command

    def command(self, *arguments: str) -> list[str]:
        """The command line of `resync` with our configuration."""
        executable = Path(sys.executable).parent / "resync"
        return [str(executable), *arguments, "--config", str(self.config_path)]

    def run(self, *arguments: str, timeout: float = COMMAND_TIMEOUT) -> str:
        """Runs a `resync` command to its end; returns its standard output.

        Raises:
            CommandError: it exited with something other than 0, or not in time.
        """
        command = self.command(*arguments)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RESYNC_")}
        try:
            result = subprocess.run(
                command,
                cwd=self.directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = [part for part in (error.stdout, error.stderr) if part]
            text = "\n".join(p.decode(errors="replace") for p in output if isinstance(p, bytes))
            raise CommandError(f"{command}: not done within {timeout} s\n{text}") from None
        if result.returncode != 0:
            raise CommandError(
                f"{command}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
            )
        return result.stdout

    def status(self, room_id: str) -> dict[str, Any]:
        """The room's entry in `resync status --json`."""
        rooms = json.loads(self.run("status", room_id, "--json"))["rooms"]
        (room,) = [room for room in rooms if room["room_id"] == room_id]
        return dict(room)

    # The database

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlalchemy.Connection]:
        engine = sqlalchemy.create_engine(self._database_url, poolclass=sqlalchemy.NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    def query(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self.database() as connection:
            rows = connection.execute(sqlalchemy.text(sql), parameters)
            return [tuple(row) for row in rows]

    def current_state(self, room_id: str) -> State:
        rows = self.query(
            "SELECT type, state_key, event_id FROM current_state_events WHERE room_id = :room_id",
            room_id=room_id,
        )
        return {(event_type, state_key): event_id for event_type, state_key, event_id in rows}

    def state_after(self, event_id: str) -> State:
        """The full state of an event's state group: its deltas laid over its ancestors'."""
        ((group,),) = self.query(
            "SELECT state_group FROM event_to_state_groups WHERE event_id = :event_id",
            event_id=event_id,
        )
        state: State = {}
        while group is not None:
            rows = self.query(
                "SELECT type, state_key, event_id FROM state_groups_state"
                " WHERE state_group = :state_group",
                state_group=group,
            )
            for event_type, state_key, value in rows:
                state.setdefault((event_type, state_key), value)
            edges = self.query(
                "SELECT prev_state_group FROM state_group_edges WHERE state_group = :state_group",
                state_group=group,
            )
            group = edges[0][0] if edges else None
        return state
