"""Replication as the worker sees it: start it, tell it of commits, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from resync.replication.commands import Command
from resync.replication.metrics import ReplicationMetrics
from resync.replication.publisher import POLL_INTERVAL_S, Publisher
from resync.replication.reader import Reader, TableRows
from resync.replication.redis import RedisLink
from resync.replication.streams import STREAMS, StreamRows
from resync.replication.tcp_server import TcpServer
from resync.replication.waiter import PartialStateWaiter, wake_by_rows
from storage import partial_state
from storage.database import Database
from storage.streams import StreamIdGenerator


class ReplicationServer:
    """Announces the rows of all streams to whoever listens.

    Every process that writes rows runs one, with or without a TCP listener: it is also what tells
    the other processes that this one lives and how far it is.
    """

    def __init__(
        self,
        database: Database,
        generators: Mapping[str, StreamIdGenerator],
        *,
        server_name: str,
        instance_name: str,
        metrics: ReplicationMetrics,
        now_ms: Callable[[], int],
        is_partial: Callable[[str], Awaitable[bool]],
        tcp: tuple[str, int] | None = None,
        redis_url: str | None = None,
        on_command: Callable[[Command], None] | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        """Put the parts together.

        Args:
            generators: from `open_generators`, of this `instance_name`; the same objects that
                the writers reserve their ids from.
            now_ms: the clock, milliseconds since the epoch.
            is_partial: asks the database whether a room is in partial state.
            tcp: address and port to listen on; port 0 takes a free one.
            redis_url: the Redis that the homeserver's processes share.
            on_command: gets what other processes tell, such as `RemoteServerUp`.
        """
        self.publisher = Publisher(
            database,
            generators,
            instance_name,
            metrics,
            now_ms=now_ms,
            poll_interval_s=poll_interval_s,
        )
        self._rooms = PartialStateWaiter(is_partial)

        async def is_partial_event(event_id: str) -> bool:
            return bool(await database.read(partial_state.find_partial_events, [event_id]))

        self._events = PartialStateWaiter(is_partial_event)
        self.publisher.add_listener(self._wake_waiters)
        self.tcp: TcpServer | None = None
        if tcp is not None:
            bind, port = tcp
            self.tcp = TcpServer(
                server_name,
                bind,
                port,
                self.publisher,
                metrics,
                now_ms=now_ms,
                on_command=on_command,
            )
            self.publisher.add_link(self.tcp)
        self.redis: RedisLink | None = None
        if redis_url is not None:
            self.redis = RedisLink(
                redis_url,
                server_name=server_name,
                instance_name=instance_name,
                source=self.publisher,
                reader=Reader(
                    self._on_rows,
                    metrics,
                    source=TableRows(database),
                    streams=STREAMS.keys(),
                    ignore_writer=instance_name,
                ),
                metrics=metrics,
                on_command=on_command,
            )
            self.publisher.add_link(self.redis)

    @property
    def port(self) -> int | None:
        """The TCP port that is listened on, if any."""
        return self.tcp.port if self.tcp is not None else None

    async def start(self) -> None:
        """Listen and begin to announce. Call it before the first id is reserved.

        Raises OSError if the address cannot be had, DatabaseUnavailable.
        """
        await self.publisher.start()
        if self.tcp is not None:
            await self.tcp.start()
        if self.redis is not None:
            self.redis.start()

    async def notify(self) -> None:
        """Rows were committed: announce them soon. Returns at once."""
        await self.publisher.notify()

    async def wait_for_room(self, room_id: str, timeout_s: float) -> bool:
        """Wait until the room is fully stated, whoever does it; False after `timeout_s`."""
        return await self._rooms.wait_for(room_id, timeout_s)

    async def wait_for_event(self, event_id: str, timeout_s: float) -> bool:
        """Wait until the state at the event is full, or its room is left; False after
        `timeout_s`."""
        return await self._events.wait_for(event_id, timeout_s)

    def wake_waiting(self, room_id: str) -> None:
        """A room left partial state without a row: it was left or purged."""
        self._rooms.wake(room_id)
        self._events.wake_all()

    async def close(self) -> None:
        """Announce what is complete, say good-bye to the readers, and end."""
        await self.publisher.close()
        if self.redis is not None:
            await self.redis.close()
        if self.tcp is not None:
            await self.tcp.close()

    async def _on_rows(self, received: StreamRows) -> None:
        """Another process has told of rows: wake who waits for them, and pass them on."""
        self._wake_waiters(received)
        await self.publisher.notify()

    def _wake_waiters(self, announced: StreamRows) -> None:
        wake_by_rows(announced, self._rooms, self._events)
