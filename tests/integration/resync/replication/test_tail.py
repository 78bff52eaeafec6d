"""`resync replication tail` on a real worker."""

from __future__ import annotations

import asyncio
import io
import uuid
from pathlib import Path

import pytest

from resync.commands.replication import NothingToFollow, WrongListener, tail
from resync.config import Config, load_config
from storage.database import Database
from tests.integration.resync.replication.netcat import PATIENCE_S, running
from tests.integration.resync.replication.test_redis import REDIS


class Screen(io.StringIO):
    """What is printed; can be waited for."""

    async def until(self, lines: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            while self.getvalue().count("\n") < lines:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.getvalue().splitlines()


def config_for(directory: Path, url: str, server_name: str, replication: str) -> Config:
    path = directory / "resync.yaml"
    path.write_text(
        f"server_name: {server_name}\ninstance_name: watcher\ndatabase: {url}\n"
        f"signing_key_path: signing.key\nreplication: {replication}\n"
    )
    return load_config(path, {})


@pytest.mark.parametrize("way", ["tcp", "redis"])
async def test_rows_are_printed_as_they_come(
    sqlite_database: Database, sqlite_url: str, tmp_path: Path, way: str
) -> None:
    server_name = f"{uuid.uuid4().hex}.example.com"
    async with running(sqlite_database, server_name=server_name, redis_url=REDIS) as worker:
        transports = {
            "tcp": f"{{tcp: {{bind: 0.0.0.0, port: {worker.port}}}}}",
            "redis": f"{{tcp: null, redis: {{url: {REDIS}}}}}",
        }
        screen = Screen()
        config = config_for(tmp_path, sqlite_url, server_name, transports[way])
        task = asyncio.create_task(tail(config, streams=["caches"], tcp=None, out=screen))
        # The worker counts who asks for positions: then the rows can begin.
        async with asyncio.timeout(PATIENCE_S):
            while not worker.asked(way):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await worker.invalidate("get_user_by_id", keys=["@é:example.com"])
        await worker.invalidate("get_partial_rooms", keys=None)
        assert await screen.until(2) == [
            'caches resync1 2 ["get_user_by_id", ["@\\u00e9:example.com"], 5]',
            'caches resync1 3 ["get_partial_rooms", null, 5]',
        ]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_closed_pipe_ends_it(
    sqlite_database: Database, sqlite_url: str, tmp_path: Path
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    async with running(sqlite_database) as worker:
        config = config_for(tmp_path, sqlite_url, "localhost:8823", "{tcp: null}")
        address = ("127.0.0.1", worker.port or 0)
        task = asyncio.create_task(tail(config, streams=[], tcp=address, out=Closed()))
        async with asyncio.timeout(PATIENCE_S):
            while not worker.asked("tcp"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await worker.invalidate("f")
        assert await asyncio.wait_for(task, PATIENCE_S) == 0


async def test_the_listener_of_another_homeserver_is_an_error(
    sqlite_database: Database, sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_database) as worker:
        config = config_for(tmp_path, sqlite_url, "example.com", "{tcp: null}")
        with pytest.raises(WrongListener, match="check the address"):
            await tail(config, streams=[], tcp=("127.0.0.1", worker.port or 0), out=io.StringIO())


async def test_nothing_to_follow_is_an_error(sqlite_url: str, tmp_path: Path) -> None:
    config = config_for(tmp_path, sqlite_url, "example.com", "{tcp: null}")
    with pytest.raises(NothingToFollow, match="--tcp HOST:PORT"):
        await tail(config, streams=[], tcp=None, out=io.StringIO())
