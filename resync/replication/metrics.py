"""What replication shows to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReplicationMetrics:
    """The metrics of one process's replication, in the registry it was given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.position = Gauge(
            "resync_replication_position",
            "Largest stream id up to which the writer is complete",
            ["stream", "writer"],
            registry=registry,
        )
        self.announced = Gauge(
            "resync_replication_announced",
            "Largest stream id up to which readers were told",
            ["stream", "writer"],
            registry=registry,
        )
        self.lag = Gauge(
            "resync_replication_lag",
            "Stream ids between the writer's position and what readers were told",
            ["stream", "writer"],
            registry=registry,
        )
        self.rows_out = Counter(
            "resync_replication_rows_announced",
            "Rows announced",
            ["stream"],
            registry=registry,
        )
        self.rows_in = Counter(
            "resync_replication_rows_received",
            "Rows received from other writers",
            ["stream"],
            registry=registry,
        )
        self.connections = Gauge(
            "resync_replication_connections",
            "Open connections",
            ["transport"],
            registry=registry,
        )
        self.commands_in = Counter(
            "resync_replication_commands_received",
            "Commands received",
            ["transport", "command"],
            registry=registry,
        )
        self.commands_out = Counter(
            "resync_replication_commands_sent",
            "Commands sent, once for each connection",
            ["transport", "command"],
            registry=registry,
        )
        self.disconnects = Counter(
            "resync_replication_disconnects",
            "Connections ended, by reason",
            ["transport", "reason"],
            registry=registry,
        )
