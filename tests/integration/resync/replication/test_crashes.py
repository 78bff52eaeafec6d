"""Writers that are killed in the middle of everything, and readers that miss nothing."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from pathlib import Path

from sqlalchemy import Connection, select

from storage.database import Database
from storage.schema import cache_invalidation_stream_by_instance as caches
from tests.integration.resync.replication.followers import Follower, over_tcp
from tests.integration.resync.replication.netcat import PATIENCE_S
from tests.interop.loopback import free_port

HERE = Path(__file__).resolve()
KILLS = 4


async def start(url: str, instance_name: str, port: int, tasks: int = 3) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE.with_name("busy_writer.py")),
        *(url, instance_name, str(port), str(tasks)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[4])},
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"ready\n"
    return process


async def kill(process: Process) -> None:
    process.kill()
    await process.wait()


def written(connection: Connection, instance_name: str) -> list[int]:
    query = select(caches.c.stream_id).where(caches.c.instance_name == instance_name)
    return list(connection.execute(query.order_by(caches.c.stream_id)).scalars())


async def test_a_killed_writer_loses_no_row(database: Database, database_url: str) -> None:
    await follow_killed_writers(database, database_url, ["resync1"])


async def test_several_killed_writers_lose_no_row(
    postgresql_database: Database, postgresql_url: str
) -> None:
    await follow_killed_writers(postgresql_database, postgresql_url, ["resync1", "resync2"])


async def follow_killed_writers(database: Database, url: str, writers: list[str]) -> None:
    """One reader follows all writers over the listener of the first, which relays the others."""
    ports = {writer: free_port() for writer in writers}
    beginning = {("caches", writer): 1 for writer in writers}
    follower = Follower(database, positions=beginning)
    async with AsyncExitStack() as stack:
        processes = {w: await start(url, w, ports[w]) for w in writers}
        await stack.enter_async_context(over_tcp(follower, ports[writers[0]]))
        for number in range(KILLS):
            await follower.until_count(len(follower.rows) + random.randrange(1, 200))
            victim = writers[number % len(writers)]
            await kill(processes[victim])
            processes[victim] = await start(url, victim, ports[victim])
        for process in processes.values():
            await kill(process)
        expected = {w: await database.read(written, w) for w in writers}
        # What the dead have committed and told nobody, their successors tell.
        for writer in writers:
            stack.push_async_callback(kill, await start(url, writer, ports[writer], tasks=0))
        await follower.until_count(sum(map(len, expected.values())))
    assert {writer: follower.ids(writer) for writer in writers} == expected
