"""The worker's Spark session: started in the background, kept warm, replaced when its JVM dies.

Everything here blocks and is called from threads; nothing here waits for a session that is still
starting, so whoever asks too early does the work in process.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from resync.java import JavaMissing, find_java
from resync.spark.errors import SparkJobCancelled, SparkJobFailed, SparkUnavailable
from resync.spark.metrics import SparkMetrics
from resync.spark.settings import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resync.spark.gateway import Jvm

logger = structlog.get_logger(__name__)

T = TypeVar("T")
Report = Callable[[int, int], None]
"""Told the tasks of a job that are done, and how many there are."""

_POLL_SECONDS = 0.25
_STARTING = "Spark is still starting"
_STOPPING = "Spark is being stopped"
_ATTEMPTS = 2
_REMEMBERED_CANCELLATIONS = 1000
_CLOSE_SECONDS = 30.0
_NO_PYSPARK = (
    "PySpark is not installed. Large rooms are resynced in this process instead of on Spark, more "
    "slowly; to use Spark, install the package with its extra `spark` and restart"
)


class WarmSession:
    """One Spark session at a time, and the jobs that run in it."""

    def __init__(
        self,
        master: str,
        settings: Mapping[str, str],
        *,
        environment: Mapping[str, str],
        metrics: SparkMetrics,
    ) -> None:
        """
        Args:
            master: `spark.master`.
            settings: further settings by Spark's own names.
            environment: where Java is looked for.
            metrics: counts sessions and jobs.
        """
        self.master = master
        self._settings = settings
        self._environment = environment
        self._metrics = metrics
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        # Held while a session is started or replaced.
        self._starting = threading.Lock()
        self._jvm: Jvm | None = None
        self._closed = False
        self._running: set[str] = set()
        # A job may be cancelled before it is run, so its name is kept, though not for ever.
        self._cancelled: deque[str] = deque(maxlen=_REMEMBERED_CANCELLATIONS)
        self.unavailable = "Spark has not been started"
        """Why there is no session; "" when there is one."""

    def start(self) -> None:
        """Starts the session in the background."""
        self.unavailable = _STARTING
        threading.Thread(target=self._start_in_background, name="spark-start", daemon=True).start()

    def wait_until_started(self) -> bool:
        """Whether there is a session, once it has started or failed to. For the impatient: tests,
        benchmarks and demonstrations."""
        while self.is_starting:
            time.sleep(0.05)
        return self.is_ready

    @property
    def is_starting(self) -> bool:
        """Whether the first session is being started."""
        return self.unavailable == _STARTING

    @property
    def is_ready(self) -> bool:
        """Whether a job can be run now."""
        return self._jvm is not None and not self._closed

    @property
    def cores(self) -> int:
        """How many tasks run at once; 1 while there is no session."""
        jvm = self._jvm
        return 1 if jvm is None else jvm.cores

    @property
    def running_jobs(self) -> int:
        """How many jobs have been given to `run` and are not over."""
        return len(self._running)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of the JVM."""
        return None if self._jvm is None else self._jvm.process.pid

    def run(
        self,
        work: str,
        group: str,
        job: Callable[[SparkSession], T],
        *,
        report: Report | None = None,
    ) -> T:
        """Runs a job, once more on a new session if it fails.

        Args:
            work: "verify" or "resolve", for metrics and logs.
            group: names the job, for `cancel`; different for every job.
            job: does everything with the session; it may be called twice.
            report: told of its progress, from another thread.

        Raises:
            SparkUnavailable: there is no session.
            SparkJobCancelled: `cancel` was called.
            SparkJobFailed: it failed twice.
        """
        self._running.add(group)
        try:
            return self._run(work, group, job, report)
        finally:
            self._running.discard(group)

    def _run(
        self, work: str, group: str, job: Callable[[SparkSession], T], report: Report | None
    ) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            jvm = self._jvm
            if jvm is None or self._closed:
                raise SparkUnavailable(self.unavailable or _STOPPING)
            try:
                with self._watched(jvm, work, group, report):
                    result = job(jvm.session)
            except Exception as error:
                from resync.spark.gateway import one_line

                if group in self._cancelled or self._closed:
                    self._metrics.job(work, "cancelled")
                    raise SparkJobCancelled(f"the Spark job {group} was stopped") from None
                reason = one_line(error)
                if attempt == _ATTEMPTS:
                    self._metrics.job(work, "failed")
                    raise SparkJobFailed(f"the Spark job failed twice: {reason}") from error
                self._metrics.job(work, "retried")
                logger.warning("a Spark job failed; trying once more", work=work, reason=reason)
                self._replace_if_dead(jvm)
            else:
                self._metrics.job(work, "ok")
                return result
        raise AssertionError

    def cancel(self, group: str) -> None:
        """Stops a job wherever it is, and before it has begun. Without effect when it is over."""
        self._cancelled.append(group)
        jvm = self._jvm
        if jvm is not None and jvm.is_alive:
            jvm.cancel(group)

    def close(self) -> None:
        """Stops the jobs, the session and the JVM, one that is being started too."""
        self._closed = True
        # Whoever starts a session notices, and gives up.
        is_idle = self._starting.acquire(timeout=_CLOSE_SECONDS)
        try:
            if self._jvm is not None:
                self._jvm.close()
                self._jvm = None
        finally:
            if is_idle:
                self._starting.release()
        self._metrics.ready(False)
        if self._directory is not None:
            self._directory.cleanup()

    def _start_in_background(self) -> None:
        with self._starting:
            self._start_or_say_why_not()

    def _start_or_say_why_not(self) -> None:
        """Starts a session; what keeps it from starting goes to `unavailable` and the log."""
        try:
            self._start()
        except (SparkUnavailable, JavaMissing) as missing:
            self.unavailable = str(missing)
        except ImportError:
            self.unavailable = _NO_PYSPARK
        except Exception as error:
            self.unavailable = f"Spark did not start: {error!r}"
        else:
            return
        self._metrics.session("unavailable")
        if not self._closed:
            logger.warning("no Spark", reason=self.unavailable)

    def _start(self) -> None:
        java = find_java(self._environment)
        started = time.monotonic()
        # Imported here: PySpark is optional, and costs a fraction of a second.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401

        from resync.spark.gateway import Jvm, one_line

        self._insist_on_being_open()
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(
                prefix="resync-spark-", ignore_cleanup_errors=True
            )
        directory = Path(self._directory.name)
        jvm = Jvm(
            spark_settings(self.master, self._settings, directory),
            directory / "spark.log",
            go_on=self._insist_on_being_open,
        )
        try:
            self._insist_on_being_open()
            _warm_up(jvm.session)
            self._insist_on_being_open()
        except Exception as error:
            jvm.close()
            raise SparkUnavailable(f"Spark cannot run a job: {one_line(error)}") from error
        self._jvm, self.unavailable = jvm, ""
        self._metrics.session("started")
        logger.info(
            "Spark is ready",
            master=self.master,
            cores=self.cores,
            java=java.version,
            seconds=round(time.monotonic() - started, 1),
        )

    def _replace_if_dead(self, failed: Jvm) -> None:
        """A new session in place of `failed` if its JVM died; several jobs may notice that."""
        with self._starting:
            if self._closed or self._jvm is not failed or failed.is_alive:
                return
            logger.warning("the JVM of Spark is gone; starting another", pid=failed.process.pid)
            self._metrics.session("lost")
            self._jvm, self.unavailable = None, "Spark is starting again"
            failed.close()
            self._start_or_say_why_not()

    def _insist_on_being_open(self) -> None:
        """
        Raises:
            SparkUnavailable: `close` was called.
        """
        if self._closed:
            raise SparkUnavailable(_STOPPING)

    @contextmanager
    def _watched(self, jvm: Jvm, work: str, group: str, report: Report | None) -> Iterator[None]:
        """The block's jobs belong to `group`; its progress is told to `report`."""
        jvm.context.setJobGroup(group, f"{work}: {group}", True)
        # In this order: what is cancelled from here on, the JVM knows of.
        if group in self._cancelled:
            raise SparkJobCancelled(group)
        over = threading.Event()
        watcher: threading.Thread | None = None
        if report is not None:
            watcher = threading.Thread(
                target=_tell_progress, args=(jvm, group, report, over), daemon=True
            )
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if watcher is not None:
                watcher.join()


def _warm_up(session: SparkSession) -> None:
    """Runs a job through Arrow and Python, so that the first real one finds everything loaded."""
    import pyarrow

    from resync.spark.tasks import echo

    table = pyarrow.table({"number": pyarrow.array([0], pyarrow.int32())})
    session.createDataFrame(table).mapInArrow(echo, "number int").toArrow()


def _tell_progress(jvm: Jvm, group: str, report: Report, over: threading.Event) -> None:
    """Tells how many tasks are done until the job is over."""
    tracker = jvm.context.statusTracker()
    while not over.wait(_POLL_SECONDS):
        try:
            stages = [
                stage
                for job_id in tracker.getJobIdsForGroup(group)
                if (job := tracker.getJobInfo(job_id)) is not None
                for stage_id in job.stageIds
                if (stage := tracker.getStageInfo(stage_id)) is not None
            ]
        except Exception:
            # The JVM is gone: whoever runs the job finds out.
            return
        total = sum(stage.numTasks for stage in stages)
        if total:
            report(sum(stage.numCompletedTasks for stage in stages), total)
