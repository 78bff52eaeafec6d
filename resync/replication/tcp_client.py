"""The TCP side that follows a server: connects, keeps the connection alive, and reconnects."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from resync.replication.commands import (
    FROM_SERVER,
    Command,
    CommandError,
    Error,
    Name,
    Ping,
    Replicate,
    Server,
    UnknownCommand,
    encode_lines,
    parse_line,
)
from resync.replication.lines import LineDecoder, LineTooLong
from resync.replication.metrics import ReplicationMetrics
from resync.replication.reader import ProtocolViolation, Reader
from storage.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 5.0
TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line taken from a server; a row is rarely longer than a few kilobytes."""

_READ_BYTES = 256 * 1024


class WrongServer(Exception):
    """The replication listener is that of another homeserver."""

    def __init__(self, address: str, expected: str, found: str) -> None:
        super().__init__(
            f"the replication listener at {address} belongs to {found[:255]!r}, not to"
            f" {expected!r}: check the address and the server_name in the config"
        )


class ConnectionBroken(Exception):
    """The connection ended, or has to be ended.

    `reason` is one of a few words, for the metrics; `tell`: the server should be told.
    """

    def __init__(self, reason: str, detail: str = "", *, tell: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.tell = tell


class TcpClient:
    """Feeds a `Reader` from a TCP server, for as long as `run` runs."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        server_name: str,
        client_name: str,
        reader: Reader,
        metrics: ReplicationMetrics,
        now_ms: Callable[[], int],
        ping_interval_s: float = PING_INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """`server_name` is the homeserver we expect at `address`."""
        self._host, self._port = address
        self._server_name = server_name
        self._client_name = client_name
        self._reader = reader
        self._metrics = metrics
        self._now_ms = now_ms
        self._ping_interval_s = ping_interval_s
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._greeted = False

    async def run(self) -> None:
        """Follow until cancelled; a connection that ends is made again.

        Raises WrongServer, and what the reader's handler raises.
        """
        pause = self._first_pause_s
        while True:
            self._greeted = False
            try:
                await self._follow()
            except (ConnectionBroken, DatabaseUnavailable, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            finally:
                self._reader.disconnected()
            if self._greeted:
                pause = self._first_pause_s
            wait = pause * random.uniform(0.5, 1)
            logger.warning(
                "replication from %s:%d: %s; connecting again in %.1f s",
                self._host,
                self._port,
                reason,
                wait,
            )
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _follow(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            incoming, outgoing = await asyncio.open_connection(self._host, self._port)
        pinging = asyncio.create_task(self._keep_alive(outgoing))
        reason = "closed by us"
        self._metrics.connections.labels("tcp-client").inc()
        try:
            self._send(outgoing, Name(self._client_name), Ping(str(self._now_ms())), Replicate())
            await self._read(incoming)
        except ConnectionBroken as error:
            reason = error.reason
            if error.tell:
                self._send(outgoing, Error(" ".join(str(error).split())))
            raise
        except WrongServer:
            reason = "wrong server"
            self._send(outgoing, Error("wrong server name"))
            raise
        except OSError:
            reason = "connection lost"
            raise
        finally:
            self._metrics.connections.labels("tcp-client").dec()
            self._metrics.disconnects.labels("tcp-client", reason).inc()
            pinging.cancel()
            outgoing.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await outgoing.wait_closed()

    async def _read(self, incoming: asyncio.StreamReader) -> None:
        decoder = LineDecoder(MAX_LINE_BYTES)
        server_pings = False
        while True:
            try:
                async with asyncio.timeout(self._timeout_s if server_pings else None):
                    data = await incoming.read(_READ_BYTES)
            except TimeoutError:
                raise ConnectionBroken("ping timeout", tell=True) from None
            if not data:
                raise ConnectionBroken("closed by the server")
            try:
                lines = decoder.feed(data)
            except LineTooLong as error:
                raise ConnectionBroken("line too long", str(error), tell=True) from None
            commands = [command for line in lines if (command := self._parse(line)) is not None]
            server_pings = server_pings or any(isinstance(c, Ping) for c in commands)
            await self._obey(commands)

    async def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Server):
                if command.data != self._server_name:
                    raise WrongServer(f"{self._host}:{self._port}", self._server_name, command.data)
                self._greeted = True
        if not self._greeted:
            if commands:
                raise ConnectionBroken("no SERVER at the beginning", tell=True)
            return
        try:
            await self._reader.feed(commands)
        except ProtocolViolation as error:
            raise ConnectionBroken("protocol violation", str(error), tell=True) from None
        for command in commands:
            if isinstance(command, Error):
                raise ConnectionBroken("the server reports an error", command.data[:200])

    def _parse(self, line: bytes) -> Command | None:
        try:
            command = parse_line(line.decode())
        except UnknownCommand as error:
            logger.info("skipped an %s", error)
            return None
        except CommandError as error:
            raise ConnectionBroken("broken line", str(error), tell=True) from None
        except UnicodeDecodeError:
            raise ConnectionBroken("broken line", "not UTF-8", tell=True) from None
        if command.NAME not in FROM_SERVER:
            raise ConnectionBroken("invalid command", command.NAME, tell=True)
        self._metrics.commands_in.labels("tcp-client", command.NAME).inc()
        return command

    async def _keep_alive(self, outgoing: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(self._ping_interval_s)
            self._send(outgoing, Ping(str(self._now_ms())))

    def _send(self, outgoing: asyncio.StreamWriter, *commands: Command) -> None:
        outgoing.write(encode_lines(commands))
        for command in commands:
            self._metrics.commands_out.labels("tcp-client", command.NAME).inc()
