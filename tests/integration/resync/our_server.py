"""Our side of these tests: a homeserver with its key, its config, and its database.

The tables are read with the tests' own SQL over their published names, so that a mistake in
`storage` cannot hide itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy
import yaml

from federation.client import ClientTimeouts, RawPdu
from federation.signing import generate_signing_key, load_signing_key, write_signing_key
from federation.simulator import BuiltEvent, RoomBuilder, SimulatedFederation
from federation.transport import Timeouts
from resync.config import Config, load_config
from resync.join import JoinResult
from resync.receive import Received
from resync.worker import Worker
from storage.events import find_known

State = dict[tuple[str, str], str]

SERVER_NAME = "ours.test"
ALICE = f"@alice:{SERVER_NAME}"
BOB = f"@bob:{SERVER_NAME}"

_KEY_TABLES = frozenset({"server_signature_keys", "server_keys_json"})
"""Keys of other servers: worth keeping whatever becomes of the join they were fetched for."""
_MIGRATION_TABLES = frozenset({"resync_alembic_version", "schema_version"})


class OurServer:
    """A homeserver whose key the simulated federation trusts.

    It listens nowhere unless the config says so: no port is needed, so tests run side by side.
    """

    def __init__(
        self, directory: Path, database_url: str, simulated: SimulatedFederation, **config: Any
    ) -> None:
        """`config`: top-level keys; sections are laid over those below, key by key."""
        self.directory = directory
        self.simulated = simulated
        self.database_url = database_url
        key_path = directory / "signing.key"
        if not key_path.exists():
            write_signing_key(key_path, generate_signing_key())
        self._trust(key_path)
        self.settings: dict[str, Any] = {
            "server_name": SERVER_NAME,
            "signing_key_path": str(key_path),
            "instance_name": "worker1",
            "database": database_url,
            "federation": {
                "listen": None,
                "verify_certificates": False,
                "ip_range_allowlist": ["127.0.0.0/8"],
                "trusted_key_servers": simulated.server_names,
            },
            "replication": {"tcp": None},
            "admin": None,
            "resync": {"backoff_min_seconds": 3000.0},
            "verification": {"processes": 1},
            "spark": None,
            "log": {"format": "json", "level": "info"},
        }
        for name, value in config.items():
            section = self.settings.get(name)
            both = isinstance(section, dict) and isinstance(value, dict)
            self.settings[name] = {**section, **value} if both else value
        self.config_path = directory / f"{self.settings['instance_name']}.yaml"
        self.config_path.write_text(yaml.safe_dump(self.settings), encoding="utf-8")
        url = sqlalchemy.make_url(database_url)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        self._engine_url = url

    def _trust(self, key_path: Path) -> None:
        key = load_signing_key(key_path)
        self.simulated.trust(SERVER_NAME, key.key_id, key.verify_key)

    @property
    def config(self) -> Config:
        return load_config(self.config_path, {})

    # -- in this process ------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def worker(self, *, silence: float | None = None) -> AsyncIterator[Worker]:
        """A worker; `silence`: for how many seconds it waits for a server that says nothing."""
        async with Worker.open(self.config) as worker:
            if silence is not None:
                # Nothing but the real waits, up to ten minutes, is not real about it.
                waits = Timeouts(connect=1.0, first_byte=silence, idle=silence, rate_window=silence)
                worker._fetcher.client._timeouts = ClientTimeouts(waits, waits)
            yield worker

    async def join(
        self, room: RoomBuilder, user_id: str = ALICE, via: Sequence[str] | None = None
    ) -> JoinResult:
        """A join that is not resynced yet."""
        async with self.worker() as worker:
            return await worker.join(room.room_id, via or self.simulated.server_names[:1], user_id)

    async def resync(self, *, silence: float | None = None) -> None:
        """What `resync worker --once` does."""
        async with self.worker(silence=silence) as worker:
            await worker.run(once=True)

    async def receive(
        self, room: RoomBuilder, events: Sequence[BuiltEvent], batch: int = 50
    ) -> Received:
        """Receives `events`, see `deliver`."""
        async with self.worker() as worker:
            return await deliver(worker, room, events, batch)

    # -- as a command ---------------------------------------------------------------------------

    async def start(self, *arguments: str) -> Process:
        """Starts a `resync` command."""
        executable = Path(sys.executable).parent / "resync"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RESYNC_")}
        # Output goes to files: nobody has to read pipes, and an orphan cannot hold them open.
        number = len(list(self.directory.glob("output-*")))
        output = self.directory / f"output-{number}.txt"
        errors = self.directory / f"errors-{number}.txt"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                str(executable),
                "--config",
                str(self.config_path),
                *arguments,
                cwd=self.directory,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        return Process(process, output, errors)

    async def run(self, *arguments: str, seconds: float = 60) -> str:
        """Runs a `resync` command that has to succeed; returns its standard output."""
        process = await self.start(*arguments)
        status = await process.wait(seconds)
        assert status == 0, process.errors
        return process.output

    async def status(self, room: RoomBuilder) -> dict[str, Any]:
        """The room in `resync status --json`."""
        shown = json.loads(await self.run("status", room.room_id, "--json"))
        (one,) = shown["rooms"]
        assert isinstance(one, dict)
        return one

    # -- the database ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def connect(self) -> Iterator[sqlalchemy.Connection]:
        engine = sqlalchemy.create_engine(self._engine_url, poolclass=sqlalchemy.NullPool)
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()

    def query(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(sql), parameters)]

    def execute(self, sql: str, **parameters: Any) -> None:
        with self.connect() as connection:
            connection.execute(sqlalchemy.text(sql), parameters)

    def column(self, sql: str, **parameters: Any) -> list[Any]:
        """The only column of a query, sorted."""
        return sorted(value for (value,) in self.query(sql, **parameters))

    def contents(self) -> dict[str, list[str]]:
        """Every row of every table but those of keys, for "nothing was written"."""
        with self.connect() as connection:
            names = sqlalchemy.inspect(connection).get_table_names()
            return {
                name: sorted(
                    repr(tuple(row))
                    for row in connection.execute(sqlalchemy.text(f'SELECT * FROM "{name}"'))
                )
                for name in sorted({*names} - _KEY_TABLES - _MIGRATION_TABLES)
            }

    def current_state(self, room: RoomBuilder) -> State:
        rows = self.query(
            "SELECT type, state_key, event_id FROM current_state_events WHERE room_id = :room_id",
            room_id=room.room_id,
        )
        assert len({row[:2] for row in rows}) == len(rows)
        return {(event_type, state_key): event_id for event_type, state_key, event_id in rows}

    def states_after(self, event_ids: Sequence[str]) -> dict[str, State]:
        """The full state after each event: its group's delta laid over its ancestors'."""
        groups = dict(self.query("SELECT event_id, state_group FROM event_to_state_groups"))
        edges = dict(self.query("SELECT state_group, prev_state_group FROM state_group_edges"))
        deltas: dict[int, State] = {}
        for group, event_type, state_key, event_id in self.query(
            "SELECT state_group, type, state_key, event_id FROM state_groups_state"
        ):
            deltas.setdefault(group, {})[event_type, state_key] = event_id
        states = {}
        for event_id in event_ids:
            state: State = {}
            group = groups[event_id]
            while group is not None:
                state = {**deltas.get(group, {}), **state}
                group = edges.get(group)
            states[event_id] = state
        return states

    def rejected(self, room: RoomBuilder) -> set[str]:
        """Rejected events of the room; the two places that say so have to agree."""
        in_events = self.column(
            "SELECT event_id FROM events WHERE room_id = :room_id AND rejection_reason IS NOT NULL",
            room_id=room.room_id,
        )
        in_rejections = self.column(
            "SELECT rejections.event_id FROM rejections"
            " JOIN events ON events.event_id = rejections.event_id WHERE room_id = :room_id",
            room_id=room.room_id,
        )
        assert in_events == in_rejections
        return set(in_events)

    def job(self, room: RoomBuilder) -> dict[str, Any]:
        """The room's row of `resync_jobs`."""
        with self.connect() as connection:
            rows = connection.execute(
                sqlalchemy.text("SELECT * FROM resync_jobs WHERE room_id = :room_id"),
                {"room_id": room.room_id},
            )
            job = dict(rows.mappings().one())
        if isinstance(job["given_up"], str):
            job["given_up"] = json.loads(job["given_up"])
        return job

    def announced_events(self) -> dict[str, bool]:
        """Event id to `rejection_status_changed`, of every row of the events' stream."""
        rows = self.query(
            "SELECT event_id, rejection_status_changed FROM un_partial_stated_event_stream"
        )
        assert len(dict(rows)) == len(rows)
        return {event_id: bool(changed) for event_id, changed in rows}

    def announced_rooms(self) -> list[str]:
        """The room of every row of the rooms' stream."""
        return self.column("SELECT room_id FROM un_partial_stated_room_stream")

    def partial_rows(self) -> list[tuple[Any, ...]]:
        """Whatever still says that something is partial."""
        return [
            (table, *row)
            for table in (
                "partial_state_rooms",
                "partial_state_rooms_servers",
                "partial_state_events",
            )
            for row in self.query(f"SELECT * FROM {table}")
        ]


class Process:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path, errors: Path) -> None:
        self.process = process
        self._output = output
        self._errors = errors

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of its log that are complete."""
        lines = self.errors.split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log about `event`."""
        return [line for line in self.log if line["event"] == event]

    async def until_logged(self, event: str, count: int = 1, seconds: float = 60) -> None:
        """Waits until its log has `count` lines about `event`."""

        def enough() -> bool:
            assert self.process.returncode is None, self.errors
            return len(self.logged(event)) >= count

        await until(enough, seconds)

    async def wait(self, seconds: float = 60) -> int:
        """Waits for its end; returns its exit status."""
        try:
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            raise AssertionError(f"not done after {seconds} s:\n{self.errors}") from None

    async def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def until(condition: Any, seconds: float = 60) -> None:
    """Waits until `condition()` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
            await asyncio.sleep(0.01)


async def deliver(
    worker: Worker, room: RoomBuilder, events: Sequence[BuiltEvent], batch: int = 50
) -> Received:
    """Hands `events` to the worker's receiver as transactions of at most `batch`.

    Auth events that are not stored are stored first, as outliers: the receiver wants to have them.
    """
    everything = Received([], {}, [])
    for start in range(0, len(events), batch):
        event_ids = ids(events[start : start + batch])
        chain = set(room.auth_chain(event_ids)).difference(event_ids)
        unknown = chain - await worker._database.read(find_known, chain)
        await worker._fetcher.new_admission().admit([room.event(auth_id) for auth_id in unknown])
        pdus = [RawPdu(room.pdu(e.event_id), e.text) for e in events[start : start + batch]]
        received = await worker.receiver.receive(room.room_id, pdus)
        everything.stored.extend(received.stored)
        everything.rejected.update(received.rejected)
        everything.refused.extend(received.refused)
    return everything


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def ids(events: Sequence[BuiltEvent]) -> list[str]:
    return [event.event_id for event in events]


def as_plain(state: Mapping[Any, str]) -> State:
    """A state with plain tuples as keys."""
    return {(key[0], key[1]): event_id for key, event_id in state.items()}
