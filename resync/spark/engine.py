"""Which engine does a piece of work, and what happens when Spark lets it down.

Spark gets what is large enough to be worth the way there; everything else, and everything while
there is no session, is done in process. A job that fails for good is done in process as well: Spark
can make a resync faster, and never make it fail.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from federation.checks import PduCheck, VerifyKey
from resync.spark.errors import SparkJobCancelled, SparkJobFailed, SparkUnavailable
from resync.spark.metrics import SparkMetrics
from resync.spark.resolve import SparkResolver
from resync.spark.session import Report, WarmSession
from resync.spark.verify import SparkPduChecker
from resync.state.batch import InProcessResolver, Problem
from resync.state.conflicts import Key

logger = structlog.get_logger(__name__)

JOB_PDUS = 25_000
"""PDUs that are gathered for one job: what arrives meanwhile is parsed while they are checked."""

T = TypeVar("T")


class SparkEngine:
    """The Spark session of a worker, and the choice between it and the worker's own processes."""

    def __init__(self, session: WarmSession, min_events: int, metrics: SparkMetrics) -> None:
        """`min_events`: how many events make a piece of work worth a Spark job."""
        self._session = session
        self._min_events = min_events
        self._metrics = metrics
        self._checker = SparkPduChecker(session)
        self._resolver = SparkResolver(session)
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Starts the session in the background."""
        self._session.start()

    async def wait_until_started(self) -> bool:
        """Whether there is a session, once it has started or failed to. Work never waits for it."""
        while self._session.is_starting:  # noqa: ASYNC110 - it starts in a thread
            await asyncio.sleep(0.05)
        return self._session.is_ready

    @property
    def unavailable(self) -> str:
        """Why there is no session, as a sentence without its full stop; "" when there is one."""
        return self._session.unavailable

    def close(self) -> None:
        """Stops all jobs and the session. Blocks."""
        self._session.close()

    def chooses_spark(self, work: str, events: int, **context: str) -> bool:
        """Whether Spark is to do a piece of work. Logs the choice and its reason.

        Args:
            work: "verify" or "resolve".
            events: how many events it is about.
            context: what it belongs to, for the log.
        """
        if events < self._min_events:
            logger.debug(
                "in process",
                work=work,
                events=events,
                reason="fewer than spark.min_events",
                **context,
            )
            return False
        if not self._session.is_ready:
            logger.info(
                "in process", work=work, events=events, reason=self._session.unavailable, **context
            )
            self._metrics.events(work, "process", events)
            return False
        logger.info(
            "on Spark",
            work=work,
            events=events,
            reason=f"at least {self._min_events} events (spark.min_events)",
            master=self._session.master,
            **context,
        )
        self._metrics.events(work, "spark", events)
        return True

    def job_size(self, expected: int, room_id: str) -> int:
        """How many PDUs to gather for each call of `check`, of `expected` in all.

        Returns:
            0 if they are to be checked in process, as they come.
        """
        return JOB_PDUS if self.chooses_spark("verify", expected, room_id=room_id) else 0

    async def check(
        self,
        json_texts: Sequence[str],
        room_version: str,
        room_id: str,
        keys: Mapping[tuple[str, str], VerifyKey],
        *,
        report: Report | None = None,
    ) -> list[PduCheck] | None:
        """`check_pdus` on Spark; None if it could not, and the caller has to do it.

        When the caller is cancelled, the job is stopped.
        """
        group = self.new_group("verify", room_id)
        told = None if report is None else _from_thread(report)
        work = asyncio.to_thread(
            self._try,
            "verify",
            lambda: self._checker.check(
                json_texts, room_version, room_id, keys, group=group, report=told
            ),
        )
        try:
            return await work
        except asyncio.CancelledError:
            self.stop_job(group)
            raise

    def resolver(self, room_id: str, report: Report) -> RoomResolver:
        """The resolver for one resync; made on the event loop, where `report` is called."""
        return RoomResolver(self, room_id, _from_thread(report))

    def resolve(
        self, problems: Sequence[Problem], group: str, report: Report
    ) -> list[dict[Key, str | None]] | None:
        """`resolve_deltas` of each problem on Spark; None if it could not. Blocks."""
        return self._try(
            "resolve", lambda: self._resolver.resolve_batch(problems, group=group, report=report)
        )

    def _try(self, work: str, job: Callable[[], T]) -> T | None:
        try:
            return job()
        except SparkJobCancelled:
            # Nobody waits for the result.
            return None
        except (SparkUnavailable, SparkJobFailed) as failed:
            logger.warning("in process after all", work=work, reason=str(failed))
            return None

    def new_group(self, work: str, room_id: str) -> str:
        """A name for a job."""
        return f"{work} {next(self._numbers)} {room_id}"

    def stop_job(self, group: str) -> None:
        """Stops a job without waiting: telling the JVM may take a while."""
        threading.Thread(target=self._session.cancel, args=(group,), daemon=True).start()


class RoomResolver:
    """A `resync.state.batch.Resolver` for one resync of one room."""

    def __init__(self, engine: SparkEngine, room_id: str, report: Report) -> None:
        self._engine = engine
        self._room_id = room_id
        self._report = report
        self._in_process = InProcessResolver()
        self._group: str | None = None
        self._stopped = False

    def resolve_batch(self, problems: Sequence[Problem]) -> list[dict[Key, str | None]]:
        """On Spark if the problems are large together, else in process.

        Raises:
            SparkJobCancelled: `stop` was called; nobody wants the result.
        """
        changes = sum(len(delta) for problem in problems for delta in problem.deltas)
        resolved = None
        if self._engine.chooses_spark("resolve", changes, room_id=self._room_id):
            # In this order: a stop from here on finds the job, one before is seen.
            self._group = self._engine.new_group("resolve", self._room_id)
            self._insist_on_going_on()
            try:
                resolved = self._engine.resolve(problems, self._group, self._report)
            finally:
                self._group = None
        if resolved is None:
            self._insist_on_going_on()
            resolved = self._in_process.resolve_batch(problems)
        return resolved

    def _insist_on_going_on(self) -> None:
        if self._stopped:
            raise SparkJobCancelled(f"the resync of {self._room_id} was stopped")

    def stop(self) -> None:
        """Stops the job that is running, if there is one: the resync is over or was cancelled."""
        self._stopped = True
        group = self._group
        if group is not None:
            self._engine.stop_job(group)


def _from_thread(report: Report) -> Report:
    """`report`, to be called from other threads."""
    loop = asyncio.get_running_loop()

    def told(done: int, total: int) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(report, done, total)

    return told
