"""The resolution of one room that is too large for one task, in parts.

The auth chains are walked state by state, and the events that remain when the power events are
settled are checked by connected component of the users they name. What cannot be parted without
changing the result is not parted.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, compress
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from federation.events import Event
from federation.room_versions import StateResolution
from resync.auth.auth_state import POWER_LEVELS_KEY
from resync.spark.components import connected_components, keys_read, spread
from resync.spark.entries import by_problem
from resync.state.auth_graph import AuthGraph, conflicted_state_subgraph
from resync.state.conflicts import Key
from resync.state.iterative import ResolvedState, iterative_auth_checks
from resync.state.ordering import sort_power_events
from resync.state.resolve import Prepared
from resync.state.v2 import is_power_event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE = 10_000
"""Events of a part that travel as one value."""

_SHARED_TYPES = ("m.room.create", "m.room.power_levels", "m.room.join_rules")


def decide_in_parts(spark: SparkSession, problem: Prepared, bins: int) -> dict[Key, str]:
    """Steps 1 to 4 of the algorithm; compare `resync.state.v2.resolve_v2`."""
    graph, conflicts, rejected = problem.graph, problem.conflicts, problem.rejected
    is_v2_1 = problem.version.state_resolution is StateResolution.V2_1
    full = _full_conflicted_set(spark, problem, is_v2_1, bins)

    # 1 and 2: the power events, of which there are few and whose order matters.
    power_events = sort_power_events(graph, filter(is_power_event, full.values()), full)
    settled = ResolvedState(graph, None if is_v2_1 else conflicts.unconflicted, rejected)
    iterative_auth_checks(graph, power_events, settled, rejected)

    # 3 and 4: all others, by component.
    picked = {event.event_id for event in power_events}
    remaining = [
        event
        for event_id, event in full.items()
        if event_id not in picked and event.state_key is not None and event_id not in rejected
    ]
    return {**settled.accepted, **_check_remaining(spark, problem, settled, remaining, bins)}


def _full_conflicted_set(
    spark: SparkSession, problem: Prepared, is_v2_1: bool, bins: int
) -> dict[str, Event]:
    """Compare `resync.state.v2.find_full_conflicted_set`."""
    graph = problem.graph
    conflicted = dict.fromkeys(chain.from_iterable(problem.conflicts.state_sets))
    full = _auth_difference(spark, problem, bins)
    full.update((event_id, graph.event(event_id)) for event_id in conflicted)
    if is_v2_1:
        full.update(conflicted_state_subgraph(graph, conflicted))
    return {event_id: event for event_id, event in full.items() if event is not None}


def _auth_difference(spark: SparkSession, problem: Prepared, bins: int) -> dict[str, Event | None]:
    """Every event that is not in the auth chain of every state.

    The graph above what all states have in common is numbered and broadcast; each task walks the
    chains of some states and says which events are in some of them and in every one.
    """
    import pyarrow as pa

    from resync.spark.packed import map_packed
    from resync.spark.tasks import walk_chains

    graph, state_sets = problem.graph, problem.conflicts.state_sets
    common = problem.common_chain()
    events = graph.chain(chain.from_iterable(state_sets), common)
    event_ids = list(events)
    number = {event_id: place for place, event_id in enumerate(event_ids)}
    starts, cited = array("i", [0]), array("i")
    for event in events.values():
        if event is not None:
            cited.extend([number[i] for i in graph.auth_event_ids(event) if i in number])
        starts.append(len(cited))
    roots = pa.list_(pa.int32())
    partitions = [
        [
            pa.record_batch(
                [pa.array([[number[i] for i in one if i in number]], roots)], names=["roots"]
            )
            for one in state_sets[start::bins]
        ]
        for start in range(min(bins, len(state_sets)))
    ]
    broadcast = spark.sparkContext.broadcast((starts, cited))
    try:
        walked = map_packed(spark, partitions, partial(walk_chains, graph=broadcast))
    finally:
        broadcast.destroy()

    def flags(name: str) -> list[int]:
        return [int.from_bytes(batch.column(name)[0].as_py(), "little") for batch in walked]

    some, every = reduce(or_, flags("some")), reduce(and_, flags("every"))
    in_difference = (some & ~every).to_bytes(len(event_ids), "little")
    return {event_id: events[event_id] for event_id in compress(event_ids, in_difference)}


@dataclass(slots=True)
class _Part:
    """One task's share of the remaining events, with what their checks look at.

    Attributes:
        remaining: the events to check.
        context: events that are looked at.
        entries: the entries of the partially resolved state that are looked at.
    """

    remaining: list[Event]
    context: dict[str, Event]
    entries: dict[Key, str]


def _check_remaining(
    spark: SparkSession,
    problem: Prepared,
    settled: ResolvedState,
    remaining: Sequence[Event],
    bins: int,
) -> dict[Key, str]:

    from resync.spark.packed import map_packed
    from resync.spark.tasks import Settled, check_remaining

    if not remaining:
        return {}
    graph, rejected = problem.graph, problem.rejected
    power_levels = settled.event_id(POWER_LEVELS_KEY)
    components = connected_components(remaining)
    shared = _Shared(graph, power_levels)
    parts = [_part(events, graph, settled, shared) for events in spread(components, bins)]
    if not shared.has_one_parent_each:
        # Which power levels such an event hangs on depends on the order: it is not parted.
        parts = [_part(list(remaining), graph, settled, shared)]
    batches = [_part_rows(number, part, graph, rejected) for number, part in enumerate(parts)]
    broadcast = spark.sparkContext.broadcast(
        Settled(
            problem.version.identifier,
            graph.room_id,
            power_levels,
            [(i, event.json, i in rejected) for i, event in shared.events.items()],
            [rows.num_rows for rows in batches],
        )
    )
    try:
        task = partial(check_remaining, settled=broadcast)
        accepted = map_packed(spark, map(_cut, batches), task)
    finally:
        broadcast.destroy()
    return by_problem((0,), accepted)[0]


def _cut(batch: Any) -> list[Any]:
    """A part as pieces of which each is small enough to be one value in Spark."""
    return [batch.slice(start, PIECE) for start in range(0, batch.num_rows, PIECE)]


class _Shared:
    """The events that nearly all others cite: create, power levels and join rules.

    All power levels events from which the mainline can be reached are among them.
    """

    def __init__(self, graph: AuthGraph, power_levels: str | None) -> None:
        self._graph = graph
        self.events: dict[str, Event] = {}
        self.unknown: set[str] = set()
        self.has_one_parent_each = True
        if power_levels is not None:
            self.look_at(power_levels)

    def look_at(self, event_id: str) -> Event | None:
        """The event, if it is one that parts have to bring themselves. Others are kept here."""
        if event_id in self.events or event_id in self.unknown:
            return None
        event = self._graph.event(event_id)
        if event is None:
            self.unknown.add(event_id)
            return None
        if not _is_shared(event):
            return event
        stack = [event]
        while stack:
            event = stack.pop()
            self.events[event.event_id] = event
            cited = [self._graph.event(cited_id) for cited_id in event.auth_event_ids]
            shared = [one for one in cited if one is not None and _is_shared(one)]
            self.count_power_levels(shared)
            stack.extend(one for one in shared if one.event_id not in self.events)
        return None

    def count_power_levels(self, cited: Iterable[Event]) -> None:
        """Notes an event that cites more than one power levels event."""
        if sum(event.type == "m.room.power_levels" for event in cited) > 1:
            self.has_one_parent_each = False


def _is_shared(event: Event) -> bool:
    return event.type in _SHARED_TYPES and event.state_key == ""


def _part(
    remaining: list[Event], graph: AuthGraph, settled: ResolvedState, shared: _Shared
) -> _Part:
    context: dict[str, Event] = {}
    for event in remaining:
        cited_shared = []
        for cited_id in graph.auth_event_ids(event):
            if cited_id in context:
                continue
            if cited_id not in shared.events:
                cited = shared.look_at(cited_id)
                if cited is not None:
                    context[cited_id] = cited
                    continue
            known = shared.events.get(cited_id)
            if known is not None:
                cited_shared.append(known)
        shared.count_power_levels(cited_shared)
    entries: dict[Key, str] = {}
    for key in keys_read(remaining):
        event_id = settled.event_id(key)
        if event_id is not None:
            entries[key] = event_id
    return _Part(remaining, context, entries)


def _part_rows(number: int, part: _Part, graph: AuthGraph, rejected: Container[str]) -> Any:
    """See `tasks.check_remaining`."""
    import pyarrow as pa

    from resync.spark.tasks import CONTEXT, REMAINING, to_bytes

    own = {event.event_id for event in part.remaining}
    context = [event for event_id, event in part.context.items() if event_id not in own]
    settled = [(key, event_id, graph.event(event_id)) for key, event_id in part.entries.items()]
    events = [*part.remaining, *context]
    roles = [REMAINING] * len(part.remaining) + [CONTEXT] * (len(context) + len(settled))
    ids = [*(event.event_id for event in events), *(event_id for _, event_id, _ in settled)]
    jsons = [
        *(to_bytes(event.json) for event in events),
        *(None if event is None else to_bytes(event.json) for _, _, event in settled),
    ]
    no_key = [None] * len(events)
    return pa.record_batch(
        {
            "part": pa.array([number] * len(ids), pa.int32()),
            "role": pa.array(roles, pa.int8()),
            "event_id": pa.array(map(to_bytes, ids), pa.binary()),
            "json": pa.array(jsons, pa.binary()),
            "rejected": pa.array([event_id in rejected for event_id in ids], pa.bool_()),
            "type": pa.array([*no_key, *(to_bytes(key[0]) for key, _, _ in settled)], pa.binary()),
            "state_key": pa.array(
                [*no_key, *(to_bytes(key[1]) for key, _, _ in settled)], pa.binary()
            ),
        }
    )
