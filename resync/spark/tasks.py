"""What runs in Spark's Python processes: pure functions over Arrow record batches.

They are importable, not closures, so that nothing but their arguments is sent along. Text travels
as bytes: hostile events hold lone surrogates, which Arrow's strings cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from federation.canonical_json import parse_json
from federation.checks import Outcome, VerifyKey, check_pdus
from federation.events import Event
from federation.room_versions import RoomVersion, StateResolution, get_room_version
from resync.state.auth_graph import AuthGraph
from resync.state.conflicts import Conflicts, Unconflicted
from resync.state.iterative import ResolvedState, iterative_auth_checks
from resync.state.ordering import sort_by_mainline
from resync.state.v1 import resolve_v1
from resync.state.v2 import resolve_v2

T_co = TypeVar("T_co", covariant=True)

Keys: TypeAlias = Mapping[tuple[str, str], VerifyKey]
"""The keys of servers, by server name and key id."""
Graph: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Events as numbers: event i cites the numbers from `starts[i]` to `starts[i + 1]` of the second
sequence."""


class Broadcast(Protocol[T_co]):
    """A value that every process has."""

    @property
    def value(self) -> T_co:
        """The value."""


OUTCOMES = tuple(Outcome)
"""The outcomes by the numbers that stand for them in results."""
_CHECKS = pa.schema(
    [
        ("index", pa.int32()),
        ("outcome", pa.int8()),
        ("event_id", pa.binary()),
        ("reason", pa.binary()),
    ]
)


def to_bytes(text: str) -> bytes:
    """Text as bytes, whatever it holds."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The reverse of `to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def echo(batches: Iterable[Any]) -> Iterator[Any]:
    """Gives back what it is given: the task that loads this module into a new process."""
    yield from batches


def check_batches(
    batches: Iterable[Any], *, room_version: str, room_id: str, keys: Broadcast[Keys]
) -> Iterator[Any]:
    """`check_pdus` over batches with the columns `index` and `json`.

    Gives for each event `index`, `outcome` (see `OUTCOMES`), `event_id` and `reason`.
    """
    for batch in batches:
        texts = [to_text(data) for data in batch.column("json").to_pylist()]
        checks = check_pdus(texts, room_version, room_id, keys.value)
        yield pa.record_batch(
            [
                batch.column("index"),
                pa.array([OUTCOMES.index(check.outcome) for check in checks], pa.int8()),
                pa.array(
                    [None if c.event_id is None else to_bytes(c.event_id) for c in checks],
                    pa.binary(),
                ),
                pa.array([to_bytes(check.reason) for check in checks], pa.binary()),
            ],
            schema=_CHECKS,
        )


# -- chains of states ---------------------------------------------------------------------------


def walk_chains(batches: Iterable[Any], *, graph: Broadcast[Graph]) -> Iterator[Any]:
    """The events in the auth chains of states; one row of the input is one state.

    Input: `roots`, the numbers of its conflicted events. Output: one row, with a byte for each
    event that is 1 if it is in the chain of `some` state of the input, and of `every` one.
    """
    starts, cited = graph.value
    events = len(starts) - 1
    some, every = 0, None
    for batch in batches:
        for roots in batch.column("roots").to_pylist():
            seen = bytearray(events)
            stack = roots
            for root in roots:
                seen[root] = 1
            while stack:
                event = stack.pop()
                for other in cited[starts[event] : starts[event + 1]]:
                    if not seen[other]:
                        seen[other] = 1
                        stack.append(other)
            reached = int.from_bytes(seen, "little")
            some |= reached
            every = reached if every is None else every & reached
    if every is not None:
        flags = [pa.array([one.to_bytes(events, "little")]) for one in (some, every)]
        yield pa.record_batch(flags, names=["some", "every"])


# -- one large room: the events that remain when the power events are settled --------------------

REMAINING, CONTEXT = 0, 1
"""What a row of `check_remaining` is: an event to check, or one that checks look at."""


class Settled(NamedTuple):
    """What all parts of one large room share.

    Attributes:
        room_version, room_id: of the room.
        power_levels: the event that the mainline starts from.
        events: id, JSON and whether it is rejected, of the events that nearly all others cite.
        rows: how many rows each part has.
    """

    room_version: str
    room_id: str | None
    power_levels: str | None
    events: list[tuple[str, str, bool]]
    rows: list[int]


def check_remaining(batches: Iterable[Any], *, settled: Broadcast[Settled]) -> Iterator[Any]:
    """Mainline ordering and iterative auth checks for parts of a room; gives `_entries`.

    Input, for each event: `part`, `role`, `event_id`, `json` (null: it is not known), `rejected`,
    and for an entry of the partially resolved state `type` and `state_key`.

    Raises:
        IncompletePart: the rows of a part are not all in this partition.
    """
    parts: dict[int, list[tuple[Any, ...]]] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in batch.schema.names)
        for part, *row in zip(*columns, strict=True):
            parts.setdefault(part, []).append(tuple(row))
    for part, rows in parts.items():
        if len(rows) != settled.value.rows[part]:
            raise IncompletePart(f"part {part} has {len(rows)} of {settled.value.rows[part]} rows")
        yield _entries([(0, key, i) for key, i in _check_part(rows, settled.value).items()])


class IncompletePart(Exception):
    """Spark has cut in two what has to be checked together."""


def _check_part(rows: Sequence[tuple[Any, ...]], settled: Settled) -> Mapping[tuple[str, str], str]:
    """The entries that the events of one part set."""
    version = get_room_version(settled.room_version)
    events = {
        event_id: _parse(event_id, json_text, version) for event_id, json_text, _ in settled.events
    }
    rejected = {event_id for event_id, _, is_rejected in settled.events if is_rejected}
    entries: dict[tuple[str, str], str] = {}
    remaining: list[str] = []
    for role, id_bytes, json_bytes, is_rejected, key_type, state_key in rows:
        event_id = to_text(id_bytes)
        if json_bytes is not None and event_id not in events:
            events[event_id] = _parse(event_id, to_text(json_bytes), version)
        if is_rejected:
            rejected.add(event_id)
        if key_type is not None:
            entries[to_text(key_type), to_text(state_key)] = event_id
        if role == REMAINING:
            remaining.append(event_id)
    graph = AuthGraph(version, events, settled.room_id)
    resolved = ResolvedState(graph, Unconflicted(entries, {}), rejected)
    checked = [events[event_id] for event_id in remaining]
    ordered = sort_by_mainline(graph, checked, settled.power_levels)
    iterative_auth_checks(graph, ordered, resolved, rejected)
    return resolved.accepted


# -- many rooms: each resolved as a whole -------------------------------------------------------

IS_REJECTED, IS_COMMON = 1, 2
"""Bits of `flags` in `decide_problems`."""


def decide_problems(batches: Iterable[Any]) -> Iterator[Any]:
    """The deciding part of state resolution; one row is one problem; gives `_entries`.

    Columns: `problem`, its number; `room_version`; `room_id`; `event_ids`, `jsons` (null: the event
    is not known) and `flags`; `types`, `state_keys` and `values` of the entries that are looked at
    (`values`: positions of their events) and whether each `is_conflicted`; `state_sets`, for each
    state the positions of its events under the conflicted keys.
    """
    for batch in batches:
        for row in batch.to_pylist():
            decided = _decide_problem(row)
            yield _entries([(row["problem"], key, value) for key, value in decided.items()])


def _decide_problem(row: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    version = get_room_version(row["room_version"])
    event_ids = [to_text(data) for data in row["event_ids"]]
    events = {
        event_id: _parse(event_id, to_text(json_bytes), version)
        for event_id, json_bytes in zip(event_ids, row["jsons"], strict=True)
        if json_bytes is not None
    }
    flagged = list(zip(event_ids, row["flags"], strict=True))
    rejected = {event_id for event_id, flags in flagged if flags & IS_REJECTED}
    common = {event_id for event_id, flags in flagged if flags & IS_COMMON}
    unconflicted: dict[tuple[str, str], str] = {}
    conflicted: dict[tuple[str, str], tuple[str, ...]] = {}
    for key_type, state_key, values, is_conflicted in zip(
        row["types"], row["state_keys"], row["values"], row["is_conflicted"], strict=True
    ):
        key = to_text(key_type), to_text(state_key)
        if is_conflicted:
            conflicted[key] = tuple(event_ids[value] for value in values)
        else:
            unconflicted[key] = event_ids[values[0]]
    conflicts = Conflicts(
        Unconflicted(unconflicted, dict.fromkeys(conflicted)),
        conflicted,
        [[event_ids[position] for position in one] for one in row["state_sets"]],
    )
    room_id = None if row["room_id"] is None else to_text(row["room_id"])
    graph = AuthGraph(version, events, room_id)
    algorithm = version.state_resolution
    if algorithm is StateResolution.V1:
        return resolve_v1(conflicts, graph, rejected)
    return resolve_v2(algorithm, conflicts, graph, common, rejected)


def _parse(event_id: str, json_text: str, version: RoomVersion) -> Event:
    return Event.from_pdu(
        parse_json(json_text), version.identifier, event_id=event_id, json_text=json_text
    )


def _entries(entries: Sequence[tuple[int, tuple[str, str], str]]) -> Any:
    """Accepted state entries: the number of the problem, the entry and the id of its event."""
    return pa.record_batch(
        [
            pa.array([number for number, _, _ in entries], pa.int32()),
            pa.array([to_bytes(key[0]) for _, key, _ in entries], pa.binary()),
            pa.array([to_bytes(key[1]) for _, key, _ in entries], pa.binary()),
            pa.array([to_bytes(event_id) for _, _, event_id in entries], pa.binary()),
        ],
        names=["problem", "type", "state_key", "event_id"],
    )
