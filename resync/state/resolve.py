"""State resolution: what the state of a room is where its history forks.

`resolve` is the specification's *resolution* of a set of states. `resolve_deltas` is the same
function for states that are kept as differences from one base; `resolve` is made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import cast

from federation.events import Event, StateKey
from federation.room_versions import RoomVersion, StateResolution, get_room_version
from resync.auth.auth_state import CREATE_KEY
from resync.state.auth_graph import AuthGraph, EventSource, LoadedEvents
from resync.state.conflicts import Conflicts, Key, Unconflicted, deltas_from_first, split_conflicts
from resync.state.indexed_state import IndexedState
from resync.state.v1 import resolve_v1
from resync.state.v2 import resolve_v2


def resolve(
    room_version: str,
    state_sets: Sequence[Mapping[Key, str]] | Sequence[Mapping[StateKey, str]],
    events: Mapping[str, Event],
    *,
    rejected: Collection[str] = (),
) -> dict[Key, str]:
    """The resolution of several states of one room.

    Args:
        room_version: "1" to "12".
        state_sets: the states, `(type, state_key)` to event id. Their order and repetitions do not
            matter.
        events: the events of the states and of their auth chains. An event that is missing here,
            or is of another room, is left out of account: a conflicted one cannot win.
        rejected: ids of rejected events. They neither enter the state nor authorise others.

    Returns:
        The resolved state.

    Raises:
        UnknownRoomVersion: see `federation.room_versions`.
    """
    # A StateKey is equal to its plain tuple, which the type of a Mapping's keys cannot express.
    states = [
        state if isinstance(state, dict) else dict(state)
        for state in cast(Sequence[Mapping[Key, str]], state_sets)
    ]
    if not states:
        return {}
    resolved = dict(states[0])
    changes = resolve_deltas(
        room_version, states[0], deltas_from_first(states), events, rejected=rejected
    )
    for key, event_id in changes.items():
        if event_id is None:
            resolved.pop(key, None)
        else:
            resolved[key] = event_id
    return resolved


def resolve_deltas(
    room_version: str,
    base: Mapping[Key, str],
    deltas: Sequence[Mapping[Key, str | None]],
    events: Mapping[str, Event],
    *,
    rejected: Collection[str] = (),
) -> dict[Key, str | None]:
    """The resolution of states that are given by what each changes in one base.

    With an `IndexedState` as base the cost is that of the differences and of the part of their
    auth chains that the rest of the base does not share, whatever the size of the base (v2.1 also
    walks through the auth chains of the conflicted events). With a plain mapping the auth chain of
    the whole base is looked at, once per call.

    Args:
        room_version: "1" to "12".
        base: a state. It is not one of the states to resolve, unless some delta is empty.
        deltas: for each state its changes to the base; None where it lacks an entry of the base.
        events: as for `resolve`; only what is looked at is asked for, so it may load lazily.
        rejected: as for `resolve`.

    Returns:
        The changes to the base that give the resolved state; None removes an entry.

    Raises:
        UnknownRoomVersion: see `federation.room_versions`.
    """
    prepared = prepare(room_version, base, deltas, events, rejected=rejected)
    return conclude(prepared, decide(prepared))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A resolution before its conflicts are decided.

    `resolve_deltas` is `prepare`, `decide` and `conclude`; who decides conflicts elsewhere uses
    the three.

    Attributes:
        version: the rules of the room.
        base: the state that the others are changes of.
        conflicts: the states, split.
        graph: the events.
        rejected: ids of rejected events.
    """

    version: RoomVersion
    base: Mapping[Key, str]
    conflicts: Conflicts
    graph: AuthGraph
    rejected: AbstractSet[str]

    def common_chain(self) -> Container[str]:
        """The events that are unconflicted state or in the auth chain of some."""
        return _common_chain(self.base, self.conflicts, self.graph)


def prepare(
    room_version: str,
    base: Mapping[Key, str],
    deltas: Sequence[Mapping[Key, str | None]],
    events: Mapping[str, Event],
    *,
    rejected: Collection[str] = (),
) -> Prepared:
    """Splits the states. Arguments and errors are those of `resolve_deltas`."""
    version = get_room_version(room_version)
    is_v1 = version.state_resolution is StateResolution.V1
    conflicts = split_conflicts(base, deltas, absence_conflicts=not is_v1)
    known = events if isinstance(events, dict) else LoadedEvents(events)
    graph = AuthGraph(version, known, _room_of(conflicts, known) if conflicts.conflicted else None)
    rejected_ids = rejected if isinstance(rejected, AbstractSet) else frozenset(rejected)
    return Prepared(version, base, conflicts, graph, rejected_ids)


def decide(prepared: Prepared) -> dict[Key, str]:
    """The entries that win, by the algorithm of the room version; not those all states share."""
    conflicts, graph, rejected = prepared.conflicts, prepared.graph, prepared.rejected
    if not conflicts.conflicted:
        return {}
    algorithm = prepared.version.state_resolution
    if algorithm is StateResolution.V1:
        return resolve_v1(conflicts, graph, rejected)
    return resolve_v2(algorithm, conflicts, graph, prepared.common_chain(), rejected)


def conclude(prepared: Prepared, decided: Mapping[Key, str]) -> dict[Key, str | None]:
    """The resolved state as changes to the base."""
    unconflicted = prepared.conflicts.unconflicted
    changes = dict(unconflicted.changes)
    # 5. Update the result by replacing any event with the event with the same key from the
    #    unconflicted state map, if such an event exists, to get the final resolved state.
    changes.update((key, value) for key, value in decided.items() if unconflicted.get(key) is None)
    return {key: value for key, value in changes.items() if prepared.base.get(key) != value}


def _common_chain(
    base: Mapping[Key, str], conflicts: Conflicts, graph: AuthGraph
) -> Container[str]:
    """The events that are unconflicted state or in the auth chain of some."""
    unconflicted = conflicts.unconflicted
    if not isinstance(base, IndexedState):
        return graph.chain(unconflicted.event_ids())
    return _CommonChainOfIndex(base.common_chain(unconflicted.changes), unconflicted, graph)


class _CommonChainOfIndex:
    """What an `IndexedState` knows of the common chain, and what it does not know.

    That is: events that all states have and the base has not, and that in version 12 every event
    rests on the create event.
    """

    def __init__(
        self, of_base: Container[str], unconflicted: Unconflicted, graph: AuthGraph
    ) -> None:
        self._of_base = of_base
        self._of_changes = graph.chain(unconflicted.changed_event_ids(), of_base)
        self._has_common = not unconflicted.is_empty()
        self._graph = graph

    def __contains__(self, event_id: object) -> bool:
        if event_id in self._of_changes or event_id in self._of_base:
            return True
        event = self._graph.event(cast(str, event_id))
        return self._has_common and event is not None and event.type == "m.room.create"


def _room_of(conflicts: Conflicts, events: EventSource) -> str | None:
    """The room that the states belong to: that of their create event.

    If they do not agree on one, the room that most conflicted events are in; None if no conflicted
    event is known.
    """
    create = conflicts.unconflicted.get(CREATE_KEY)
    creates = conflicts.conflicted.get(CREATE_KEY, ()) if create is None else (create,)
    rooms = _rooms(creates, events)
    if len(rooms) != 1:
        conflicted = (i for event_ids in conflicts.conflicted.values() for i in event_ids)
        rooms = _rooms(conflicted, events)
    return max(rooms, key=lambda room_id: (rooms[room_id], room_id), default=None)


def _rooms(event_ids: Iterable[str], events: EventSource) -> Counter[str]:
    known = (events.get(event_id) for event_id in event_ids)
    return Counter(event.room_id for event in known if event is not None)
