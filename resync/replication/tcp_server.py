"""The TCP side that readers connect to: a line protocol that netcat can speak.

The server greets with `SERVER` and `PING`, answers `REPLICATE` with a `POSITION` for each stream
and writer, and sends every row as `RDATA`. A client that has sent a `PING` must go on sending
something; one that has not is left alone, so that a person can watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from resync.replication.commands import (
    FROM_CLIENT,
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
from resync.replication.links import Source
from resync.replication.metrics import ReplicationMetrics

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 5.0
TIMEOUT_S = 15.0

MAX_LINE_BYTES = 65_536
"""Longest line taken from a client; what clients say is short."""

MAX_BUFFER_BYTES = 8 * 1024 * 1024
"""How far a reader may fall behind before it is cut off."""

MAX_CONNECTIONS = 256

COMMANDS_PER_SECOND = 1_000
COMMANDS_AT_ONCE = 10_000

PATIENCE_S = 1.0
"""How long rows wait for a reader that has stopped reading, before they pile up for it."""

LINGER_S = 15.0
"""How long a connection that was ended may take to receive what was sent."""

STOP_S = 1.0
"""The same when the whole server stops."""

_HIGH_WATER = 256 * 1024
_UNKNOWN_COMMANDS_LOGGED = 10


class TcpServer:
    """Listens for readers and sends them all the same rows. A `Link` of the publisher."""

    def __init__(
        self,
        server_name: str,
        bind: str,
        port: int,
        source: Source,
        metrics: ReplicationMetrics,
        *,
        now_ms: Callable[[], int],
        on_command: Callable[[Command], None] | None = None,
        ping_interval_s: float = PING_INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        """Port 0 takes a free one: see `port` after `start`.

        `on_command` gets the commands that concern more than the connection, such as
        `REMOTE_SERVER_UP`.
        """
        self.server_name = server_name
        self.source = source
        self.metrics = metrics
        self.now_ms = now_ms
        self.on_command = on_command
        self.ping_interval_s = ping_interval_s
        self.timeout_s = timeout_s
        self.max_buffer_bytes = max_buffer_bytes
        self.connections: dict[_Connection, None] = {}
        self.progress = asyncio.Event()
        self._bind = bind
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._server is None:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be had."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), self._bind, self._port
        )
        logger.info("replication listens on %s:%d", self._bind, self.port)

    async def close(self) -> None:
        """Stop listening, tell the readers, and give them a moment to receive it."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.end("server stopping", Error("server stopping"))
        try:
            async with asyncio.timeout(STOP_S):
                while self.connections:
                    self.progress.clear()
                    await self.progress.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        self._server = None

    # As a link of the publisher

    def has_readers(self) -> bool:
        return any(not connection.closing for connection in self.connections)

    def send(self, commands: Sequence[Command], *, relayed: bool) -> None:
        data = encode_lines(commands)
        receivers = [connection for connection in self.connections if not connection.closing]
        for connection in receivers:
            connection.write(data)
        self.count_sent(commands, len(receivers))

    async def ready(self) -> None:
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while waiting := [c for c in self.connections if c.paused and not c.slow]:
            self.progress.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self.progress.wait()
            except TimeoutError:
                for connection in waiting:
                    connection.slow = connection.paused
                return

    def count_sent(self, commands: Sequence[Command], receivers: int = 1) -> None:
        for name, count in Counter(command.NAME for command in commands).items():
            self.metrics.commands_out.labels("tcp", name).inc(count * receivers)


class _Connection(asyncio.Protocol):
    """One client: its greeting, its commands, and the bounds it is held to."""

    def __init__(self, server: TcpServer) -> None:
        self.closing = False
        self.paused = False
        self.slow = False
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._decoder = LineDecoder(MAX_LINE_BYTES)
        self._name = "anonymous"
        self._reason = "closed by the client"
        self._sends_pings = False
        self._has_said_all = False
        self._last_sent = self._last_received = self._loop.time()
        self._allowance = float(COMMANDS_AT_ONCE)
        self._allowance_at = self._last_received
        self._unknown: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        server = self._server
        self._peer = str(transport.get_extra_info("peername"))
        first = not server.has_readers()
        server.connections[self] = None
        server.metrics.connections.labels("tcp").set(len(server.connections))
        if len(server.connections) > MAX_CONNECTIONS:
            self.end("too many connections", Error("too many connections"))
            return
        self._send([Server(server.server_name), Ping(str(server.now_ms()))])
        if first and (held := server.source.take_held()):
            self._send(held)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        try:
            for line in self._decoder.feed(data):
                self._receive(line)
                if self.closing:
                    return
        except LineTooLong as error:
            self.end("line too long", Error(str(error)))

    def eof_received(self) -> bool:
        # `nc` closes its half when its input ends, and goes on reading; a client that is gone
        # looks the same until a PING cannot be delivered. Clients that send PINGs do neither.
        self._has_said_all = True
        return not self.closing and not self._sends_pings

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = self.slow = False
        self._server.progress.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self.closing = True
            self._count_disconnect()
        if self._timer is not None:
            self._timer.cancel()
        server = self._server
        del server.connections[self]
        server.progress.set()
        server.metrics.connections.labels("tcp").set(len(server.connections))

    def _count_disconnect(self) -> None:
        self._server.metrics.disconnects.labels("tcp", self._reason).inc()
        logger.info("replication client %s (%s): %s", self._name, self._peer, self._reason)

    # For the server

    def write(self, data: bytes) -> None:
        """Send lines, unless the client has too many to read already: then it is cut off."""
        self._last_sent = self._loop.time()
        if self._transport.get_write_buffer_size() + len(data) > self._server.max_buffer_bytes:
            self.end("failed to keep up", Error("failed to keep up"))
            return
        self._transport.write(data)

    def end(self, reason: str, *last_words: Command) -> None:
        """Say why, send what is still buffered, and close."""
        if self.closing:
            return
        self.closing = True
        self._reason = reason
        self._count_disconnect()
        self._transport.write(encode_lines(last_words))
        if self._has_said_all:
            self._transport.close()
        else:
            # Closing while the client sends would reset the connection and lose the last words.
            self._transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        self._transport.abort()

    # Commands

    def _receive(self, line: bytes) -> None:
        now = self._loop.time()
        earned = (now - self._allowance_at) * COMMANDS_PER_SECOND
        self._allowance = min(self._allowance + earned, COMMANDS_AT_ONCE) - 1
        self._allowance_at = now
        if self._allowance < 0:
            self.end("too many commands", Error("too many commands"))
            return
        try:
            command = parse_line(line.decode())
        except UnknownCommand as error:
            self._skip(error)
            return
        except (CommandError, UnicodeDecodeError) as error:
            reason = str(error) if isinstance(error, CommandError) else "not UTF-8"
            self.end("broken line", Error(f"cannot read that line: {reason}".replace("\n", " ")))
            return
        if command.NAME not in FROM_CLIENT:
            self.end("wrong command", Error(f"invalid command: {command.NAME}"))
            return
        self._last_received = now
        self._server.metrics.commands_in.labels("tcp", command.NAME).inc()
        self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Ping():
                if not self._sends_pings:
                    self._sends_pings = True
                    self._set_timer()
            case Replicate():
                self._send(self._server.source.positions())
            case Name(data):
                self._name = repr(data[:64])
            case Error(data):
                logger.warning("replication client %s reports: %r", self._name, data[:500])
            case _:
                if self._server.on_command is not None:
                    self._server.on_command(command)

    def _skip(self, error: UnknownCommand) -> None:
        self._server.metrics.commands_in.labels("tcp", "unknown").inc()
        if error.name not in self._unknown and len(self._unknown) < _UNKNOWN_COMMANDS_LOGGED:
            self._unknown.add(error.name)
            logger.warning("replication client %s: skipped an %s", self._name, error)

    def _send(self, commands: Sequence[Command]) -> None:
        self.write(encode_lines(commands))
        self._server.count_sent(commands)

    # Keeping alive

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._last_sent + self._server.ping_interval_s
        if self._sends_pings:
            at = min(at, self._last_received + self._server.timeout_s)
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        if self._sends_pings and now >= self._last_received + self._server.timeout_s:
            self.end("ping timeout", Error("ping timeout"))
            return
        if now >= self._last_sent + self._server.ping_interval_s:
            self._send([Ping(str(self._server.now_ms()))])
        if not self.closing:
            self._set_timer()
