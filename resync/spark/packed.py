"""Record batches through Spark as they are.

Spark takes each value out of the Arrow data it is given, and puts all into Arrow again for Python,
on the way there and back. A record batch that is packed into one value passes as bytes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = Callable[[Iterable[Any]], Iterator[Any]]
"""From record batches to record batches. Importable, with arguments bound by `partial`."""

_PACKED = "batch binary"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def map_packed(spark: SparkSession, partitions: Iterable[Sequence[Any]], task: Task) -> list[Any]:
    """Runs `task` over each partition, which is a list of record batches, as one Spark task.

    Returns:
        The record batches that the tasks gave, those of each partition in their order.
    """
    # One record batch becomes one partition: no shuffle is needed to spread the work.
    table = pa.Table.from_batches([_column(map(pack, batches)) for batches in partitions])
    if table.num_rows == 0:
        return []
    mapped = spark.createDataFrame(table).mapInArrow(partial(on_packed, task=task), _PACKED)
    return [unpack(data) for data in mapped.toArrow().column("batch").to_pylist()]


def on_packed(batches: Iterable[Any], *, task: Task) -> Iterator[Any]:
    """What Spark's Python processes run: `task`, between unpacking and packing."""
    unpacked = (unpack(data) for batch in batches for data in batch.column("batch").to_pylist())
    # Events hold no cycles, and there are so many that looking for some takes half the time.
    gc.disable()
    try:
        for result in task(unpacked):
            yield _column([pack(result)])
    finally:
        gc.enable()


def pack(batch: Any) -> bytes:
    """A record batch, with its schema, as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> Any:
    """The reverse of `pack`."""
    return pa.ipc.open_stream(data).read_next_batch()


def _column(packed: Iterable[bytes]) -> Any:
    return pa.record_batch({"batch": pa.array(packed, pa.binary())})
