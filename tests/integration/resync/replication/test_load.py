"""Readers that are slow, and many at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from storage.database import Database
from tests.integration.resync.replication.followers import Follower, over_tcp
from tests.integration.resync.replication.netcat import connected, running

ROWS = 100_000
READERS = 20
MEGABYTE = 1024 * 1024


async def test_a_slow_reader_is_cut_off_and_catches_up(sqlite_database: Database) -> None:
    async with running(sqlite_database) as worker, connected(worker.port) as slow:
        worker.server.tcp.max_buffer_bytes = MEGABYTE
        bystander = Follower(sqlite_database)
        await slow.type("REPLICATE")
        position = await slow.until("POSITION caches")
        assert position == "POSITION caches resync1 1 1"
        written: list[int] = []
        async with over_tcp(bystander, worker.port):
            await bystander.connected()
            # It reads no more; the buffers of the kernel take a few megabytes.
            for _ in range(40):
                written += await worker.invalidate(*["x" * 1000] * 500)
                await bystander.until_count(len(written))
        buffered = await slow.rest()
        assert buffered[-1] == "ERROR failed to keep up"
        seen = [int(line.split(" ")[3]) for line in buffered if line.startswith("RDATA")]
        assert seen == written[: len(seen)]
        assert 0 < len(seen) < len(written)
        again = Follower(sqlite_database, positions={("caches", "resync1"): seen[-1]})
        async with over_tcp(again, worker.port):
            await again.until_count(len(written) - len(seen))
        assert seen + again.ids() == bystander.ids() == written
        assert worker.sample(
            "resync_replication_disconnects_total", transport="tcp", reason="failed to keep up"
        )


async def test_many_rows_to_many_readers(
    sqlite_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(sqlite_database) as worker:
        readers = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("many_readers.py")),
            *(str(worker.port), str(READERS), str(ROWS + 1)),
            stdout=subprocess.PIPE,
        )
        assert readers.stdout is not None
        assert await readers.stdout.readline() == b"ready\n"
        process = psutil.Process(os.getpid())
        before = largest = process.memory_info().rss
        await worker.invalidate(*["get_user_by_id"] * ROWS)
        start = time.monotonic()
        answer = asyncio.create_task(readers.stdout.readline())
        while not answer.done():
            largest = max(largest, process.memory_info().rss)
            await asyncio.wait([answer], timeout=0.05)
        seconds = time.monotonic() - start
        assert int(await answer) == ROWS * READERS
        assert await readers.wait() == 0
        assert largest - before < 200 * MEGABYTE
        with capsys.disabled():
            print(
                f"\n{ROWS:,} rows to {READERS} readers in {seconds:.1f} s:"
                f" {ROWS / seconds:,.0f} rows/s announced,"
                f" {ROWS * READERS / seconds:,.0f} rows/s received,"
                f" {(largest - before) / MEGABYTE:.0f} MB more memory"
            )
