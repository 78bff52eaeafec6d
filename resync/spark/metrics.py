"""What Spark shows to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

JOB_RESULTS = ("ok", "retried", "failed", "cancelled")
SESSION_EVENTS = ("started", "lost", "unavailable")


class SparkMetrics:
    """The metrics of one process's use of Spark, in the registry it was given.

    `retried` counts attempts that failed and were made again; `failed` counts jobs that failed
    for good, whose work was then done in process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Counter(
            "resync_spark_jobs",
            "Spark jobs, by work and result.",
            ["work", "result"],
            registry=registry,
        )
        self._sessions = Counter(
            "resync_spark_sessions",
            "Spark sessions, by what became of them.",
            ["event"],
            registry=registry,
        )
        self._ready = Gauge(
            "resync_spark_ready", "Whether a Spark session is warm.", registry=registry
        )
        self._events = Counter(
            "resync_engine_events",
            "Events of large batches, by work and by the engine that was chosen for them.",
            ["work", "engine"],
            registry=registry,
        )
        for event in SESSION_EVENTS:
            self._sessions.labels(event)

    def job(self, work: str, result: str) -> None:
        """Count a job: "verify" or "resolve", and one of `JOB_RESULTS`."""
        self._jobs.labels(work, result).inc()

    def session(self, event: str) -> None:
        """Count what happened to a session, one of `SESSION_EVENTS`."""
        self._sessions.labels(event).inc()
        self._ready.set(event == "started")

    def ready(self, ready: bool) -> None:
        """Set whether a session is warm."""
        self._ready.set(ready)

    def events(self, work: str, engine: str, count: int) -> None:
        """Count the events that were given to an engine: "spark" or "process"."""
        self._events.labels(work, engine).inc(count)
