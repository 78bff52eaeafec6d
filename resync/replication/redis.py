"""Replication over Redis: one channel, named after the homeserver, that all processes share.

Every process publishes its commands there and hears those of all others, its own included. Redis
keeps nothing: whoever was away asks with `REPLICATE`, learns from the `POSITION`s what it has
missed, and reads that from the tables.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from resync.replication.commands import (
    Command,
    CommandError,
    Position,
    Replicate,
    UnknownCommand,
    format_line,
    parse_line,
)
from resync.replication.links import Source
from resync.replication.metrics import ReplicationMetrics
from resync.replication.reader import ProtocolViolation, Reader, StopFollowing
from storage.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0

SILENCE_S = 10.0
"""After so long without a message Redis is asked whether it is there; after three times, left."""

MAX_QUEUED = 50_000
"""Commands that wait to be published; beyond, the connection is given up and made again."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
PATIENCE_S = 1.0
_AT_ONCE = 1000


class RedisBroken(Exception):
    """The connection has to be given up, for the reason given."""


class RedisLink:
    """Announces our rows on the channel, and feeds a `Reader` with those of the others.

    A `Link` of the publisher. Without a reader it only announces.
    """

    def __init__(
        self,
        url: str,
        *,
        server_name: str,
        instance_name: str,
        source: Source | None,
        reader: Reader | None,
        metrics: ReplicationMetrics,
        on_command: Callable[[Command], None] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`source` answers `REPLICATE`: None for a process that writes nothing."""
        self._url = url
        self._channel = server_name
        self._instance_name = instance_name
        self._source = source
        self._reader = reader
        self._metrics = metrics
        self._on_command = on_command
        self._silence_s = silence_s
        self._connected = False
        self._queue: deque[Command] = deque()
        self._queued = asyncio.Event()
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._task = asyncio.create_task(self.run(), name="replication over Redis")

    async def close(self) -> None:
        """Publish what is queued, then end."""
        if self._task is None:
            return
        await self.ready()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    # As a link of the publisher

    def has_readers(self) -> bool:
        return self._connected

    def send(self, commands: Sequence[Command], *, relayed: bool) -> None:
        # The other process is on the channel itself.
        if self._connected and not relayed:
            self._queue.extend(commands)
            self._queued.set()

    async def ready(self) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while self._connected and self._queue:
            self._sent.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._sent.wait()
            except TimeoutError:
                return

    # The connection

    async def run(self) -> None:
        """Follow the channel until cancelled. Raises StopFollowing if the handler does."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._follow()
            except (RedisError, RedisBroken, OSError, TimeoutError, DatabaseUnavailable) as error:
                reason = str(error) or type(error).__name__
            except StopFollowing:
                self._disconnected()
                raise
            except Exception as error:
                logger.exception("replication over Redis failed")
                reason = type(error).__name__
            if self._connected:
                pause = FIRST_PAUSE_S
            self._disconnected()
            wait = pause * random.uniform(0.5, 1)
            logger.warning("replication over Redis: %s; connecting again in %.1f s", reason, wait)
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _disconnected(self) -> None:
        if self._connected:
            self._metrics.disconnects.labels("redis", "connection lost").inc()
        self._metrics.connections.labels("redis").set(0)
        self._connected = False
        self._queue.clear()
        self._sent.set()
        if self._reader is not None:
            self._reader.disconnected()

    async def _follow(self) -> None:
        # The library must not connect again behind our back: what was missed has to be fetched.
        once = Retry(NoBackoff(), 0)
        redis = Redis.from_url(self._url, retry=once, socket_connect_timeout=10)
        try:
            async with redis, redis.pubsub() as channel:
                await channel.subscribe(self._channel)
                await self._subscribed(channel)
                self._greet()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(redis))
                    tasks.create_task(self._listen(channel))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _subscribed(self, channel: PubSub) -> None:
        """Wait for Redis to confirm: only then is every answer to our `REPLICATE` heard."""
        async with asyncio.timeout(10):
            while True:
                message = await channel.get_message(timeout=1.0)
                if message is not None and message["type"] == "subscribe":
                    return

    def _greet(self) -> None:
        logger.info("replication over Redis: following the channel %s", self._channel)
        self._connected = True
        self._metrics.connections.labels("redis").set(1)
        self._queue.append(Replicate())
        if self._source is not None:
            self._queue.extend(self._source.take_held())
        self._send_positions()

    def _send_positions(self) -> None:
        if self._source is not None:
            self._queue.extend(
                position
                for position in self._source.positions()
                if isinstance(position, Position) and position.instance_name == self._instance_name
            )
        self._queued.set()

    async def _publish(self, redis: Redis) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                if len(self._queue) > MAX_QUEUED:
                    raise RedisBroken("Redis takes commands slower than they come")
                commands = [self._queue[i] for i in range(min(len(self._queue), _AT_ONCE))]
                async with redis.pipeline(transaction=False) as pipeline:
                    for command in commands:
                        pipeline.publish(self._channel, format_line(command).encode())
                    await pipeline.execute()
                for _ in commands:
                    self._queue.popleft()
                self._sent.set()
                for name, count in Counter(command.NAME for command in commands).items():
                    self._metrics.commands_out.labels("redis", name).inc(count)

    async def _listen(self, channel: PubSub) -> None:
        silent = 0
        while True:
            message = await channel.get_message(timeout=self._silence_s)
            if message is None:
                silent += 1
                if silent > 3:
                    raise RedisBroken("Redis does not answer")
                await channel.ping()
                continue
            silent = 0
            commands: list[Command] = []
            while message is not None:
                if (command := self._parse(message)) is not None:
                    commands.append(command)
                if len(commands) >= _AT_ONCE:
                    break
                message = await channel.get_message(timeout=0)
            await self._obey(commands)

    async def _obey(self, commands: Sequence[Command]) -> None:
        if any(isinstance(command, Replicate) for command in commands):
            self._send_positions()
        if self._on_command is not None:
            for command in commands:
                self._on_command(command)
        if self._reader is not None:
            try:
                await self._reader.feed(commands)
            except ProtocolViolation as error:
                raise RedisBroken(str(error)) from None

    def _parse(self, message: dict[str, Any]) -> Command | None:
        """The command in a message; what cannot be read is logged and skipped."""
        data = message["data"]
        if message["type"] != "message" or not data.strip():
            return None
        try:
            if len(data) > MAX_MESSAGE_BYTES:
                raise CommandError(f"longer than {MAX_MESSAGE_BYTES} bytes")
            command = parse_line(data.decode())
        except UnknownCommand as error:
            self._metrics.commands_in.labels("redis", "unknown").inc()
            logger.info("skipped an %s", error)
            return None
        except (CommandError, UnicodeDecodeError) as error:
            self._metrics.commands_in.labels("redis", "broken").inc()
            logger.warning("skipped a message on Redis that cannot be read: %s", error)
            return None
        self._metrics.commands_in.labels("redis", command.NAME).inc()
        return command
