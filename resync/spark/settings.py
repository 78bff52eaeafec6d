"""Spark's settings: what suits this machine and this work, under what the operator sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_GIB = 2**30
_FORCED = {
    # Each record batch that a job makes is one partition and one part of the work: Spark must not
    # cut it in two.
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def is_local(master: str) -> bool:
    """Whether everything runs inside the JVM that is started here."""
    return master == "local" or master.startswith("local[")


def driver_memory(total_bytes: int) -> str:
    """The heap for the JVM on a machine with so much memory: a sixth of it, 1 to 8 GiB.

    The worker and Spark's Python processes, which do the work, live beside it.
    """
    return f"{min(max(total_bytes // 6, _GIB), 8 * _GIB) // 2**20}m"


def spark_settings(
    master: str, overrides: Mapping[str, str], directory: Path, *, total_bytes: int | None = None
) -> dict[str, str]:
    """The settings of a session.

    Args:
        master: `spark.master`.
        overrides: Spark's own names to values; they win, but over what the jobs depend on.
        directory: where Spark may put its files.
        total_bytes: the machine's memory; None asks the machine.
    """
    if total_bytes is None:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    settings = {
        "spark.app.name": "resync",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": driver_memory(total_bytes),
        # Results are verdicts and ids; they are bounded by what went in.
        "spark.driver.maxResultSize": "0",
        "spark.pyspark.python": sys.executable,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.task.maxFailures": "4",
        "spark.scheduler.mode": "FAIR",
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(directory),
            # What a JVM that is killed leaves lying about is cleared away with the directory.
            "spark.driver.defaultJavaOptions": (f'"-Djava.io.tmpdir={directory}" -XX:-UsePerfData'),
        }
    return {**settings, **overrides, **_FORCED, "spark.master": master}
