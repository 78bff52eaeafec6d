"""`resync replication tail`: the rows of the replication streams, as they come."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Collection
from typing import TextIO

from prometheus_client import CollectorRegistry

from resync.config import Config
from resync.errors import ResyncError
from resync.replication.metrics import ReplicationMetrics
from resync.replication.reader import Reader, StopFollowing, TableRows
from resync.replication.redis import RedisLink
from resync.replication.streams import StreamRows
from resync.replication.tcp_client import TcpClient, WrongServer
from storage.database import Database

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NothingToFollow(ResyncError):
    """Neither Redis nor a TCP listener is in the config, and no address was given."""


class WrongListener(ResyncError):
    """The listener that was to be followed is that of another homeserver."""


async def tail(
    config: Config,
    *,
    streams: Collection[str],
    tcp: tuple[str, int] | None,
    out: TextIO,
) -> int:
    """Print rows until stopped: stream, writer, id and the row as JSON, one to a line.

    Follows Redis if the config has it, so that the rows of Synapse's processes come too, else
    the TCP listener of the worker. What is missed while a connection is down is read from the
    tables afterwards.

    Args:
        streams: names of streams; empty for all.
        tcp: the address of a worker's TCP listener, to be followed in any case.

    Raises:
        NothingToFollow, WrongListener: as they say.
    """
    database = Database(config.database)
    try:
        metrics = ReplicationMetrics(CollectorRegistry())
        reader = Reader(
            _Printer(out),
            metrics,
            source=TableRows(database),
            streams=streams or None,
        )
        name = f"{config.instance_name}-tail-{os.getpid()}"
        listener = config.replication.tcp
        if tcp is None and config.replication.redis is not None:
            link = RedisLink(
                config.replication.redis.url,
                server_name=config.server_name,
                instance_name=name,
                source=None,
                reader=reader,
                metrics=metrics,
            )
            await link.run()
        if tcp is None:
            if listener is None:
                raise NothingToFollow(
                    "the config has neither replication.redis nor replication.tcp:"
                    " say with --tcp HOST:PORT which worker to follow"
                )
            tcp = (_ANY_ADDRESS.get(listener.bind, listener.bind), listener.port)
        client = TcpClient(
            tcp,
            server_name=config.server_name,
            client_name=name,
            reader=reader,
            metrics=metrics,
            now_ms=lambda: int(time.time() * 1000),
        )
        await client.run()
    except WrongServer as error:
        raise WrongListener(str(error)) from error
    except StopFollowing:
        return 0
    finally:
        await database.close()
    return 0


class _Printer:
    """Prints rows as they come."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    async def __call__(self, received: StreamRows) -> None:
        name, writer, rows = received
        lines = [f"{name} {writer} {stream_id} {json.dumps(row)}\n" for stream_id, row in rows]
        # A terminal or a pipe that is read slowly must not stop the keep-alives.
        try:
            await asyncio.to_thread(self._print, "".join(lines))
        except BrokenPipeError:
            # Whoever read our output has had enough, as `head` does.
            raise StopFollowing from None

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
