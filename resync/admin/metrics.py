"""The numbers that Prometheus collects, in a registry of their own.

One `Metrics` object is made by the composition root and handed to whatever counts something.
All methods may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from storage.jobs import JobState

ROOM_STATES: tuple[JobState, ...] = ("queued", "running", "backoff", "complete")
CONTENT_TYPE = CONTENT_TYPE_LATEST

_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """Everything that is counted. The names are part of what operators rely on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._rooms = Gauge(
            "resync_rooms", "Rooms by state of their resync.", ["state"], registry=self.registry
        )
        self._joins = Counter(
            "resync_joins", "Joins made, by kind.", ["kind"], registry=self.registry
        )
        self._attempts = Counter(
            "resync_attempts", "Resyncs ended, by result.", ["result"], registry=self.registry
        )
        self._un_partial_stated = Counter(
            "resync_events_un_partial_stated",
            "Events whose full state was worked out.",
            registry=self.registry,
        )
        self._checked = Counter(
            "resync_events_checked",
            "Events received and checked, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self._requests = Counter(
            "resync_federation_requests",
            "Requests to other homeservers, by endpoint and result.",
            ["endpoint", "result"],
            registry=self.registry,
        )
        self._inbound_transactions = Counter(
            "resync_inbound_transactions",
            "Transactions of other homeservers, by result.",
            ["result"],
            registry=self.registry,
        )
        self._inbound_pdus = Counter(
            "resync_inbound_pdus",
            "Events that other homeservers sent, by result.",
            ["result"],
            registry=self.registry,
        )
        self._inbound_edus = Counter(
            "resync_inbound_edus",
            "Ephemeral units that other homeservers sent and that nobody here looks at.",
            registry=self.registry,
        )
        self._outgoing_transactions = Counter(
            "resync_outgoing_transactions",
            "Transactions with events of ours, by result.",
            ["result"],
            registry=self.registry,
        )
        self._outgoing_pdus = Counter(
            "resync_outgoing_pdus",
            "Events of ours delivered to a server, by what it said of them.",
            ["result"],
            registry=self.registry,
        )
        self._stage_seconds = Counter(
            "resync_stage_seconds",
            "Seconds spent in each stage of the work.",
            ["stage"],
            registry=self.registry,
        )
        self._loop_stall_max = Gauge(
            "resync_event_loop_stall_max_seconds",
            "The longest time that the event loop was kept from running.",
            registry=self.registry,
        )
        self._loop_lag = Histogram(
            "resync_event_loop_lag_seconds",
            "By how much the event loop was late.",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        self._leases_held = Gauge(
            "resync_leases_held", "Rooms that this worker holds.", registry=self.registry
        )
        self._leases = Counter(
            "resync_leases", "Leases by what became of them.", ["result"], registry=self.registry
        )
        self._admin_requests = Counter(
            "resync_admin_requests",
            "Requests to the admin listener, by method, route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._stall_lock = threading.Lock()
        self._longest_stall = 0.0
        for state in ROOM_STATES:
            self._rooms.labels(state).set(0)

    def rooms_by_state(self, counts: Mapping[JobState, int]) -> None:
        """Set the number of rooms in each of `ROOM_STATES`; a state that is absent has none."""
        for state in ROOM_STATES:
            self._rooms.labels(state).set(counts.get(state, 0))

    def join(self, kind: str) -> None:
        """Count a join: "partial", "full" or "failed"."""
        self._joins.labels(kind).inc()

    def attempt(self, result: str) -> None:
        """Count a resync that ended: "complete", "backoff", "abandoned" or "lease_lost"."""
        self._attempts.labels(result).inc()

    def events_un_partial_stated(self, count: int) -> None:
        """Count events taken out of partial state."""
        self._un_partial_stated.inc(count)

    def events_checked(self, outcome: str, count: int) -> None:
        """Count checked events: "accepted", "redacted", "dropped" or "rejected"."""
        self._checked.labels(outcome).inc(count)

    def request(self, endpoint: str, result: str) -> None:
        """Count a request to another homeserver: its endpoint, and "ok" or what went wrong."""
        self._requests.labels(endpoint, result).inc()

    def inbound_transaction(self, result: str) -> None:
        """Count a transaction: "taken", "repeated", "limited" or "failed"."""
        self._inbound_transactions.labels(result).inc()

    def inbound_pdus(self, result: str, count: int) -> None:
        """Count received events.

        At once "refused" (checks 1 to 3, the ACL) or "ignored" (of a room we are not in); once
        they are taken in "accepted", "rejected", "soft_failed" or "dropped".
        """
        if count:
            self._inbound_pdus.labels(result).inc(count)

    def inbound_edus(self, count: int) -> None:
        """Count received ephemeral units."""
        self._inbound_edus.inc(count)

    def outgoing_transaction(self, result: str) -> None:
        """Count a transaction of ours: "sent" or "failed"."""
        self._outgoing_transactions.labels(result).inc()

    def outgoing_pdus(self, result: str, count: int) -> None:
        """Count events of ours that a server has: "accepted", or "refused" by it."""
        if count:
            self._outgoing_pdus.labels(result).inc(count)

    def stage_seconds(self, stage: str, seconds: float) -> None:
        """Add time spent in a stage: fetch, parse, verify, auth, resolve, store."""
        self._stage_seconds.labels(stage).inc(seconds)

    @contextmanager
    def stage(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stage_seconds(stage, time.perf_counter() - start)

    def event_loop_stall(self, seconds: float) -> None:
        """Record by how much the event loop was late; the longest is kept."""
        self._loop_lag.observe(seconds)
        with self._stall_lock:
            if seconds > self._longest_stall:
                self._longest_stall = seconds
                self._loop_stall_max.set(seconds)

    def leases_held(self, count: int) -> None:
        """Set the number of leases that this worker holds."""
        self._leases_held.set(count)

    def lease(self, result: str) -> None:
        """Count a lease: "acquired", "released" or "lost"."""
        self._leases.labels(result).inc()

    def admin_request(self, method: str, route: str, status: int) -> None:
        """Count a request to the admin listener."""
        self._admin_requests.labels(method, route, str(status)).inc()

    def render(self) -> bytes:
        """Everything in Prometheus' text format; `CONTENT_TYPE` names it."""
        return generate_latest(self.registry)
