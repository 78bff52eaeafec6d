"""State resolution in batches, as Spark jobs.

Splitting the states and settling the power events stays here, where the events are. Problems of
ordinary size are decided whole, many to a task. A room too large for one task is decided in parts:
its auth chains are walked state by state, and the events that remain when the power events are
settled are checked by connected component of the users they name.

Every part runs the functions of `resync.state`, so both engines agree whatever the input; what
cannot be parted without changing the result is not parted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from federation.events import Event
from federation.room_versions import StateResolution
from resync.auth.auth_state import POWER_LEVELS_KEY
from resync.spark.components import keys_read, spread_sizes
from resync.spark.entries import by_problem
from resync.spark.large_room import decide_in_parts
from resync.spark.session import Report, WarmSession
from resync.state.batch import Problem
from resync.state.conflicts import Key
from resync.state.resolve import Prepared, conclude, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_ROOM = 20_000
"""From this many conflicted events on a problem is too large for one task."""
TASKS_PER_CORE = 4


class SparkResolver:
    """`resolve_deltas` for many problems at once, on Spark, with the same results."""

    def __init__(self, session: WarmSession, *, large_room: int = LARGE_ROOM) -> None:
        """`large_room`: from how many conflicted events on a room is decided in parts."""
        self._session = session
        self._large_room = large_room

    def resolve_batch(
        self, problems: Sequence[Problem], *, group: str, report: Report | None = None
    ) -> list[dict[Key, str | None]]:
        """The resolution of each problem, as changes to its base. Blocks until all are done.

        Args:
            group: names the jobs, for `WarmSession.cancel`.
            report: told how many of their tasks are done.

        Raises:
            SparkUnavailable, SparkJobFailed, SparkJobCancelled: see `WarmSession.run`.
        """
        prepared = [
            prepare(p.room_version, p.base, p.deltas, p.events, rejected=p.rejected)
            for p in problems
        ]
        sizes = [sum(map(len, one.conflicts.conflicted.values())) for one in prepared]
        large = [
            number
            for number, one in enumerate(prepared)
            if sizes[number] >= self._large_room
            and one.version.state_resolution is not StateResolution.V1
        ]
        whole = [n for n, size in enumerate(sizes) if size and n not in set(large)]
        bins = self._session.cores * TASKS_PER_CORE

        def job(spark: SparkSession) -> dict[int, dict[Key, str]]:
            decided: dict[int, dict[Key, str]] = {}
            if whole:
                decided |= _decide_whole(spark, {n: prepared[n] for n in whole}, bins)
            # Each of these fills all cores by itself: none of them holds up the others.
            for number in large:
                decided[number] = decide_in_parts(spark, prepared[number], bins)
            return decided

        decided: dict[int, dict[Key, str]] = {}
        if whole or large:
            decided = self._session.run("resolve", group, job, report=report)
        return [conclude(one, decided.get(n, {})) for n, one in enumerate(prepared)]


def _decide_whole(
    spark: SparkSession, problems: Mapping[int, Prepared], bins: int
) -> dict[int, dict[Key, str]]:
    import pyarrow as pa

    from resync.spark.packed import map_packed
    from resync.spark.tasks import decide_problems

    rows = [_problem_row(number, one) for number, one in problems.items()]
    placed = spread_sizes([len(row["event_ids"]) for row in rows], bins)
    partitions = [
        [pa.RecordBatch.from_pylist([rows[p] for p in one], _problem_schema())] for one in placed
    ]
    return by_problem(problems, map_packed(spark, partitions, decide_problems))


def _problem_schema() -> Any:
    import pyarrow as pa

    positions = pa.list_(pa.int32())
    return pa.schema(
        [
            ("problem", pa.int32()),
            ("room_version", pa.string()),
            ("room_id", pa.binary()),
            ("event_ids", pa.list_(pa.binary())),
            ("jsons", pa.list_(pa.binary())),
            ("flags", pa.list_(pa.int8())),
            ("types", pa.list_(pa.binary())),
            ("state_keys", pa.list_(pa.binary())),
            ("values", pa.list_(positions)),
            ("is_conflicted", pa.list_(pa.bool_())),
            ("state_sets", pa.list_(positions)),
        ]
    )


def _problem_row(number: int, problem: Prepared) -> dict[str, Any]:
    """One problem with everything that deciding it may look at: see `tasks.decide_problems`."""
    from resync.spark.tasks import IS_COMMON, IS_REJECTED, to_bytes

    conflicts, graph, rejected = problem.conflicts, problem.graph, problem.rejected
    is_v1 = problem.version.state_resolution is StateResolution.V1
    conflicted = dict.fromkeys(chain.from_iterable(conflicts.conflicted.values()))
    events: dict[str, Event | None]
    if is_v1:
        # Version 1 looks at the states alone.
        events = {event_id: graph.event(event_id) for event_id in conflicted}
        common: Any = frozenset()
    else:
        events = graph.chain(conflicted)
        common = problem.common_chain()
    judged = [
        e for i, e in events.items() if e is not None and (i in conflicted or i not in common)
    ]
    entries = {
        key: event_id
        for key in {*keys_read(judged), POWER_LEVELS_KEY}
        if (event_id := conflicts.unconflicted.get(key)) is not None
    }
    for key, event_id in entries.items():
        if key == POWER_LEVELS_KEY and not is_v1:
            # The mainline is walked from here.
            events.update(graph.chain((event_id,), events))
        events.setdefault(event_id, graph.event(event_id))
    position = {event_id: place for place, event_id in enumerate(events)}
    keys = [*conflicts.conflicted, *entries]
    return {
        "problem": number,
        "room_version": problem.version.identifier,
        "room_id": None if graph.room_id is None else to_bytes(graph.room_id),
        "event_ids": [to_bytes(event_id) for event_id in events],
        "jsons": [None if event is None else to_bytes(event.json) for event in events.values()],
        "flags": [
            (IS_REJECTED if event_id in rejected else 0) | (IS_COMMON if event_id in common else 0)
            for event_id in events
        ],
        "types": [to_bytes(key[0]) for key in keys],
        "state_keys": [to_bytes(key[1]) for key in keys],
        "values": [
            *([position[i] for i in values] for values in conflicts.conflicted.values()),
            *([position[event_id]] for event_id in entries.values()),
        ],
        "is_conflicted": [place < len(conflicts.conflicted) for place in range(len(keys))],
        "state_sets": [[position[i] for i in one] for one in conflicts.state_sets],
    }
