"""The composition root: the one place where the parts are made and joined together.

async with Worker.open(config) as worker:
    joined = await worker.join("!room:remote", ["remote"], "@alice:us")
    await worker.run(once=True)
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, select

from federation.checks import VerifyKey
from federation.client import FederationClient
from federation.inbound import RequestAuthenticator, inbound_routes
from federation.keys import KeyRing
from federation.server import build_app
from federation.signing import SigningKey, generate_signing_key, load_signing_key, write_signing_key
from federation.tls import client_tls_context, server_tls_context
from federation.transport import Transport, open_transport
from resync.acting import EventCreator
from resync.admin.api import AdminApi
from resync.admin.health import Health
from resync.admin.metrics import Metrics
from resync.admin.token import load_or_create_token
from resync.attempts import Attempts
from resync.collector import Collector
from resync.config import Config, FederationListener
from resync.errors import ListenerFailed
from resync.inbound import InboundAnswers
from resync.join import Joiner, JoinResult
from resync.join_request import check_join_request
from resync.leave import Departures
from resync.listener import listen
from resync.loop_monitor import LoopMonitor
from resync.progress import ProgressBoard
from resync.progress_record import ProgressRecorder
from resync.receive import InboundQueue, Received, Receiver, TransactionReceiver
from resync.receive.fetch import MissingPieces
from resync.replication.metrics import ReplicationMetrics
from resync.replication.server import ReplicationServer
from resync.replication.streams import open_generators
from resync.room_to_fetch import load_room_to_fetch
from resync.room_writer import Announcements
from resync.rooms import WorkerRooms
from resync.scheduler import Scheduler
from resync.sending import EventSender
from resync.spark.engine import SparkEngine
from resync.spark.metrics import SparkMetrics
from resync.spark.session import WarmSession
from resync.state_fetch import StateFetcher
from resync.verify import CheckPool, PduVerifier
from storage import migrate, partial_state
from storage.database import Database
from storage.errors import SchemaOutOfDate
from storage.keys import DatabaseKeyStore

__all__ = ["JoinResult", "Worker"]

logger = structlog.get_logger(__name__)

_FOREVER_MS = 2**53 - 1


class Worker:
    """A running resync worker, or the parts of one that a single command needs.

    Attributes:
        progress: how far each room is that this process works on.
        metrics: what is counted.
        spark: the engine for large rooms; None if the config turns it off.
        receiver: takes in events.
        creator: makes events of local users.
        departures: lets local users leave, and purges rooms.
        loop_monitor: how long the event loop was kept from running.
    """

    def __init__(
        self,
        config: Config,
        *,
        database: Database,
        client: FederationClient,
        key_ring: KeyRing,
        verifier: PduVerifier,
        spark: SparkEngine | None,
        signing_key: SigningKey,
        metrics: Metrics,
        replication: ReplicationServer,
        announcements: Announcements,
    ) -> None:
        """See `open`, which makes the parts and closes them again."""
        self._config = config
        self._database = database
        self._key_ring = key_ring
        self.spark = spark
        self._replication = replication
        self._announcements = announcements
        self.metrics = metrics
        self.progress = ProgressBoard()
        self._collector = Collector()
        self._verifier = verifier
        self.loop_monitor = LoopMonitor(metrics.event_loop_stall)
        self._health = Health(lambda: database.read(_ping))
        self._recorder = ProgressRecorder(self.progress, database)
        self._fetcher = StateFetcher(
            client=client,
            verifier=verifier,
            database=database,
            instance_name=config.instance_name,
            metrics=metrics,
        )
        self._joiner = Joiner(
            server_name=config.server_name,
            signing_key=signing_key,
            client=client,
            verifier=verifier,
            database=database,
            instance_name=config.instance_name,
            count_join=metrics.join,
        )
        load = partial(load_room_to_fetch, database=database, own_server_name=config.server_name)
        self.receiver = Receiver(
            database=database,
            verifier=verifier,
            pieces=MissingPieces(client=client, fetcher=self._fetcher, database=database),
            load_room_to_fetch=load,
            instance_name=config.instance_name,
            server_name=config.server_name,
        )
        self._inbound = InboundQueue(
            database=database,
            receiver=self.receiver,
            on_received=self._on_received,
            metrics=metrics,
        )
        self._sender = EventSender(database=database, client=client, metrics=metrics)
        self.creator = EventCreator(
            server_name=config.server_name,
            signing_key=signing_key,
            database=database,
            receiver=self.receiver,
            wake_sender=self._sender.wake,
        )
        self._answers = InboundAnswers(
            database=database,
            sender_is_back=self._sender.is_back,
            transactions=TransactionReceiver(
                database=database,
                verifier=verifier,
                metrics=metrics,
                wake=self._inbound.wake,
            ),
        )
        attempts = Attempts(
            database=database,
            key_ring=key_ring,
            fetcher=self._fetcher,
            load_room_to_fetch=load,
            is_removed=self._is_removed,
            announcements=announcements,
            instance_name=config.instance_name,
            spark=spark,
            board=self.progress,
            metrics=metrics,
            collector=self._collector,
        )
        self._scheduler = Scheduler(
            attempts.run,
            database=database,
            instance_name=config.instance_name,
            settings=config.resync,
            board=self.progress,
            metrics=metrics,
            beat=self._health.beat,
        )

        self.departures = Departures(
            database=database,
            client=client,
            creator=self.creator,
            stop_resync=self._scheduler.stop,
            forget=self.receiver.forget,
            wake_waiting=replication.wake_waiting,
            instance_name=config.instance_name,
            server_name=config.server_name,
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config) -> AsyncIterator[Worker]:
        """A worker that can join rooms, with its keys served to other homeservers.

        Raises:
            SchemaOutOfDate: the database has to be migrated first.
            DatabaseUnavailable, InvalidSigningKey, InvalidTlsFile, ListenerFailed: as they say.
        """
        async with AsyncExitStack() as stack:
            database = Database(config.database)
            stack.push_async_callback(database.close)
            await _require_current_schema(config.database)
            signing_key = _load_or_create_signing_key(config.signing_key_path)
            metrics = Metrics()
            transport = _open_transport(config, metrics)
            stack.push_async_callback(transport.close)
            own_keys = {
                (config.server_name, signing_key.key_id): VerifyKey(
                    signing_key.verify_key, _FOREVER_MS
                )
            }
            key_ring = KeyRing(
                transport,
                DatabaseKeyStore(database),
                config.federation.trusted_key_servers,
                own_keys=own_keys,
            )
            pool = CheckPool(config.verification.process_count)
            stack.push_async_callback(pool.close)
            spark = _make_spark(config, metrics)
            generators = await open_generators(database, config.instance_name)

            async def is_partial(room_id: str) -> bool:
                return await database.read(partial_state.load_partial_room, room_id) is not None

            tcp, redis = config.replication.tcp, config.replication.redis
            replication = ReplicationServer(
                database,
                generators,
                server_name=config.server_name,
                instance_name=config.instance_name,
                metrics=ReplicationMetrics(metrics.registry),
                now_ms=lambda: int(time.time() * 1000),
                is_partial=is_partial,
                tcp=None if tcp is None else (tcp.bind, tcp.port),
                redis_url=None if redis is None else redis.url,
            )
            worker = cls(
                config,
                database=database,
                client=FederationClient(config.server_name, signing_key, transport),
                key_ring=key_ring,
                verifier=PduVerifier(key_ring, pool, metrics, spark),
                spark=spark,
                signing_key=signing_key,
                metrics=metrics,
                replication=replication,
                announcements=Announcements(
                    events=generators["un_partial_stated_event"],
                    rooms=generators["un_partial_stated_room"],
                    caches=generators["caches"],
                    notify=replication.notify,
                ),
            )
            await stack.enter_async_context(worker._serve_federation(signing_key))
            yield worker

    async def run(self, *, once: bool = False) -> None:
        """The service: resyncs rooms and answers, until cancelled.

        Args:
            once: end when nothing is due and nothing is running.

        Raises:
            ListenerFailed: a port of the config is taken.
        """
        async with AsyncExitStack() as stack:
            if self.spark is not None:
                self.spark.start()
                stack.push_async_callback(asyncio.to_thread, self.spark.close)
            await self._start_replication()
            stack.push_async_callback(self._replication.close)
            if self._config.admin is not None:
                await stack.enter_async_context(self._serve_admin())
            stack.enter_context(self._collector.leave_out_what_exists())
            for background in (
                self._health.run(),
                self.loop_monitor.run(),
                self._verifier.warm_up(),
                self._recorder.run(),
                self._sender.run(),
                # Where another process answers the federation, what is staged is for it.
                *([self._inbound.run()] if self._config.federation.listen is not None else []),
            ):
                stack.push_async_callback(_cancel, asyncio.create_task(background))
            logger.info("worker started", instance=self._config.instance_name)
            if once and self._config.federation.listen is not None:
                await self._inbound.settle()
            await self._scheduler.run(once=once)

    async def join(self, room_id: str, via: Sequence[str], user_id: str) -> JoinResult:
        """Joins a room for a local user; the resync of a partial join is then due.

        Raises:
            InvalidJoinRequest: the ids are malformed or not of this server.
            JoinFailed: no server of `via` let the user in.
        """
        request = check_join_request(room_id, via, user_id, server_name=self._config.server_name)
        joined = await self._joiner.join(request)
        self._scheduler.wake()
        return joined

    async def send_queued(self) -> list[str]:
        """Tries once to send what is queued for other servers; returns those that lack some."""
        return await self._sender.send_once()

    def wake(self) -> None:
        """A room may be due: look at once."""
        self._key_ring.forget_failures()
        self._scheduler.wake()

    async def wait_until_complete(self, room_id: str, timeout_seconds: float) -> bool:
        """Whether the room is fully stated, at the latest after the time-out.

        Whichever worker finishes it, the wait ends when its announcement arrives.
        """
        return await self._replication.wait_for_room(room_id, timeout_seconds)

    async def wait_until_event_complete(self, event_id: str, timeout_seconds: float) -> bool:
        """Whether the state at the event is full, or its room left, at the latest after the
        time-out."""
        return await self._replication.wait_for_event(event_id, timeout_seconds)

    async def _is_removed(self, room_id: str) -> bool:
        return await self.departures.check_removed(room_id)

    async def _on_received(self, room_id: str, received: Received) -> None:
        """Events were taken into a room; one may have removed its last local user."""
        if received.current_state_changed:
            await self.departures.check_removed(room_id)
        self._scheduler.wake()

    async def _start_replication(self) -> None:
        tcp = self._config.replication.tcp
        try:
            await self._replication.start()
        except OSError as error:
            assert tcp is not None
            raise ListenerFailed("replication.tcp", tcp.bind, tcp.port, error) from error

    @asynccontextmanager
    async def _serve_federation(self, signing_key: SigningKey) -> AsyncIterator[None]:
        """Answers other homeservers, unless another process does."""
        listener = self._config.federation.listen
        if listener is None:
            yield
            return
        server_name = self._config.server_name
        authenticator = RequestAuthenticator(server_name, self._key_ring.fetch)
        app = build_app(
            server_name,
            [signing_key],
            routes=inbound_routes(server_name, authenticator, self._answers),
        )
        async with listen(
            app,
            listener.bind,
            listener.port,
            setting="federation.listen",
            tls=_listener_tls(listener),
        ):
            yield

    @asynccontextmanager
    async def _serve_admin(self) -> AsyncIterator[None]:
        admin = self._config.admin
        assert admin is not None
        rooms = WorkerRooms(
            self._database,
            lease_ttl_seconds=self._config.resync.lease_ttl_seconds,
            wait=self._replication.wait_for_room,
            wake=self.wake,
        )
        app = AdminApi(
            rooms,
            join=self.join,
            leave=self.departures.leave,
            purge=self.departures.purge,
            server_name=self._config.server_name,
            token=load_or_create_token(admin.token_path),
            metrics=self.metrics,
            health=self._health,
        ).build_app()
        async with listen(app, admin.bind, admin.port, setting="admin"):
            yield


def _make_spark(config: Config, metrics: Metrics) -> SparkEngine | None:
    """The Spark engine, not started; None if the config turns it off."""
    if config.spark is None:
        return None
    spark_metrics = SparkMetrics(metrics.registry)
    session = WarmSession(
        config.spark.master,
        config.spark.spark_settings,
        environment=os.environ,
        metrics=spark_metrics,
    )
    return SparkEngine(session, config.spark.min_events, spark_metrics)


def _ping(connection: Connection) -> None:
    connection.execute(select(1))


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _require_current_schema(url: str) -> None:
    if not await asyncio.to_thread(migrate.is_current, url):
        raise SchemaOutOfDate(
            "the database does not have the newest schema: run `resync migrate` first"
        )


def _load_or_create_signing_key(path: Path) -> SigningKey:
    """The key in `path`; a server that has none yet gets a new one.

    Raises:
        InvalidSigningKey: the file does not hold a signing key.
    """
    if not path.exists():
        write_signing_key(path, generate_signing_key())
        logger.warning("made a new signing key; keep it: it is the server's identity", path=path)
    return load_signing_key(path)


def _open_transport(config: Config, metrics: Metrics) -> Transport:
    return open_transport(
        tls=client_tls_context(verify_certificates=config.federation.verify_certificates),
        ip_range_denylist=config.federation.ip_range_denylist,
        ip_range_allowlist=config.federation.ip_range_allowlist,
        observe=metrics.request,
    )


def _listener_tls(listener: FederationListener) -> ssl.SSLContext | None:
    if listener.tls_certificate_path is None or listener.tls_private_key_path is None:
        return None
    return server_tls_context(listener.tls_certificate_path, listener.tls_private_key_path)
