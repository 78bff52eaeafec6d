"""Checks 1 to 3 on large batches of PDUs, as a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from federation.checks import PduCheck, VerifyKey
from resync.spark.session import Report, WarmSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_ROWS, MAX_ROWS = 500, 5_000
"""PDUs in one task: enough to be worth starting it, few enough to spread and to fit in memory."""
TASKS_PER_CORE = 4


class SparkPduChecker:
    """`federation.checks.check_pdus` on Spark: the same function, with the same results."""

    def __init__(self, session: WarmSession) -> None:
        self._session = session

    def check(
        self,
        json_texts: Sequence[str],
        room_version: str,
        room_id: str,
        keys: Mapping[tuple[str, str], VerifyKey],
        *,
        group: str,
        report: Report | None = None,
    ) -> list[PduCheck]:
        """`check_pdus`. Blocks until the job is done.

        Args:
            group: names the job, for `WarmSession.cancel`.
            report: told how many of its tasks are done.

        Raises:
            SparkUnavailable, SparkJobFailed, SparkJobCancelled: see `WarmSession.run`.
        """
        if not json_texts:
            return []
        rows = rows_per_task(len(json_texts), self._session.cores)

        def job(spark: SparkSession) -> list[PduCheck]:
            return _check(spark, json_texts, room_version, room_id, keys, rows)

        return self._session.run("verify", group, job, report=report)


def rows_per_task(rows: int, cores: int) -> int:
    """How many of `rows` go into one task."""
    return min(max(rows // (cores * TASKS_PER_CORE), MIN_ROWS), MAX_ROWS)


def _check(
    spark: SparkSession,
    json_texts: Sequence[str],
    room_version: str,
    room_id: str,
    keys: Mapping[tuple[str, str], VerifyKey],
    rows: int,
) -> list[PduCheck]:
    import pyarrow as pa

    from resync.spark.packed import map_packed
    from resync.spark.tasks import OUTCOMES, check_batches, to_bytes, to_text

    partitions = (
        [
            pa.record_batch(
                {
                    "index": pa.array(range(start, min(start + rows, len(json_texts))), pa.int32()),
                    "json": pa.array(map(to_bytes, json_texts[start : start + rows]), pa.binary()),
                }
            )
        ]
        for start in range(0, len(json_texts), rows)
    )
    broadcast = spark.sparkContext.broadcast(dict(keys))
    try:
        task = partial(check_batches, room_version=room_version, room_id=room_id, keys=broadcast)
        checked = map_packed(spark, partitions, task)
    finally:
        broadcast.destroy()
    results: list[PduCheck | None] = [None] * len(json_texts)
    for batch in checked:
        columns = (batch.column(name).to_pylist() for name in batch.schema.names)
        for index, outcome, event_id, reason in zip(*columns, strict=True):
            results[index] = PduCheck(
                OUTCOMES[outcome], None if event_id is None else to_text(event_id), to_text(reason)
            )
    complete = [check for check in results if check is not None]
    if len(complete) != len(json_texts):
        raise RuntimeError(f"{len(json_texts) - len(complete)} PDUs came back without a result")
    return complete
