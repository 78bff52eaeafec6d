"""Events that arrive: checked as they have to be in partial and in full state, and stored.

Source: server-server API, "Checks performed on receipt of a PDU"; faster joins, "Partial state";
design, section 3, step 2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from federation.client import RawPdu
from federation.events import Event, StateKey
from resync.errors import ResyncError
from resync.outliers import auth_dependencies
from resync.receive.fetch import MissingPieces
from resync.receive.judge import Judgement, Surroundings, judge
from resync.receive.order import (
    NO_PREV_EVENTS,
    in_graph_order,
    missing_parents,
    without_descendants,
)
from resync.receive.room_states import KnownStates, StatesOfRooms
from resync.room_to_fetch import RoomToFetch
from resync.room_writer import id_of, store_groups
from resync.state_fetch import FetchedState
from resync.verify import PduVerifier
from resync.walk.states import PlannedGroup, RoomState
from resync.walk.verdict_cache import VerdictCache
from storage import current_state, extremities, inbound, partial_state, rooms, state_groups
from storage import events as event_store
from storage.database import Database
from storage.errors import RoomNotPartial
from storage.events import GraphEvent

logger = structlog.get_logger(__name__)

MAX_TRIES = 20
"""How often a batch is judged again because the room changed meanwhile."""
JUDGED_AT_ONCE = 8
"""Batches, each of another room, that are judged and stored at the same time."""
CREATE = StateKey("m.room.create", "")

_NO_ORIGINS: Mapping[str, str] = MappingProxyType({})

AfterStoring = Callable[[Connection], None]


class NotInRoom(ResyncError):
    """No local user is in the room, so its events are not taken in."""

    def __init__(self, room_id: str) -> None:
        super().__init__(f"no user of this server is in {room_id}")
        self.room_id = room_id


class _RoomMoved(Exception):
    """The room changed while a batch was judged; it is judged again."""


@dataclass(frozen=True, slots=True)
class Received:
    """What became of the PDUs of one batch.

    Attributes:
        stored: ids of the events stored now, in the order in which they were.
        rejected: those of them that are rejected, with the reason.
        refused: PDUs that were not stored: dropped, or their auth events are unknown.
        soft_failed: stored, accepted and held back (check 6).
        deferred: events that lack something which may be had later, with what it is.
        current_state_changed: whether the current state of the room is another one now.
    """

    stored: list[str]
    rejected: dict[str, str]
    refused: list[str]
    soft_failed: list[str] = field(default_factory=list)
    deferred: dict[str, str] = field(default_factory=dict)
    current_state_changed: bool = False


class _Snapshot(NamedTuple):
    """A room as it is where a batch goes, read in one transaction.

    Attributes:
        present: events of the batch that are in the graph already.
    """

    room: inbound.ReceivingRoom
    present: set[str]
    groups: dict[str, int]
    partial_parents: set[str]
    extremities: list[str]
    followed: set[str]


class Receiver:
    """Takes events into rooms that local users are in."""

    def __init__(
        self,
        *,
        database: Database,
        verifier: PduVerifier,
        pieces: MissingPieces,
        load_room_to_fetch: Callable[[Connection, str, str], RoomToFetch],
        instance_name: str,
        server_name: str,
    ) -> None:
        """`room_to_fetch(room_id, room_version)` reads whom to ask about a room."""
        self._database = database
        self._verifier = verifier
        self._pieces = pieces
        self._load_room_to_fetch = load_room_to_fetch
        self._instance_name = instance_name
        self._server_name = server_name
        self._states = StatesOfRooms()
        self._locks: dict[str, asyncio.Lock] = {}
        self._judging = asyncio.Semaphore(JUDGED_AT_ONCE)

    def forget(self, room_id: str) -> None:
        """The room has been purged: nothing that was loaded of it is true any more."""
        self._states.take(room_id)

    async def receive(self, room_id: str, pdus: Sequence[RawPdu]) -> Received:
        """All checks on PDUs that came by another way than a transaction, then `take_in`.

        Raises:
            RoomNotPartial: the room is unknown or fully stated.
        """
        room = await self._database.read(partial_state.load_partial_room, room_id)
        if room is None or room.room_version is None:
            raise RoomNotPartial(room_id)
        checked = await self._verifier.verify(pdus, room_version=room.room_version, room_id=room_id)
        received = await self.take_in(room_id, checked.events)
        dropped = [f"{dropped.event_id}: {dropped.reason}" for dropped in checked.dropped]
        late = [f"{event_id}: {reason}" for event_id, reason in received.deferred.items()]
        received.refused.extend(dropped + late)
        return received

    async def take_in(
        self,
        room_id: str,
        events: Sequence[Event],
        origins: Mapping[str, str] = _NO_ORIGINS,
        *,
        after_storing: AfterStoring | None = None,
    ) -> Received:
        """Takes in events that have passed checks 1 to 3: what they lack is fetched, the other
        checks are made, and what is not deferred is stored and no longer staged.

        While the room is partial check 6 is skipped, and an event is marked as partial when one
        of its parents is, or is unknown: the state before it is then an approximation, which the
        resync corrects. While other servers are asked for what is missing, other batches of the
        room go on.

        Args:
            origins: event id to the server that sent it.
            after_storing: runs in the transaction that stores events.

        Raises:
            NotInRoom: no local user is in the room.
        """
        staged = [event.event_id for event in events]
        room = (await self._database.read(inbound.load_receiving_rooms, [room_id])).get(room_id)
        if room is None:
            raise NotInRoom(room_id)
        known, is_complete = await self._database.read(_look_up, events)
        new = [event for event in events if event.event_id not in known]
        deferred: dict[str, str] = {}
        to_fetch: RoomToFetch | None = None
        if is_complete:
            ordered = in_graph_order(new)
        else:
            to_fetch = await self._read_room_to_fetch(room)
            new += await self._pieces.parents(to_fetch, new, origins)
            ordered, deferred = await self._with_auth_events(to_fetch, in_graph_order(new), origins)
        refused = await self._database.read(_find_misplaced, room_id, ordered)
        for event_id, reason in refused.items():
            logger.warning("event refused", room_id=room_id, event_id=event_id, reason=reason)
        ordered = [event for event in ordered if event.event_id not in refused]
        lock = self._locks.setdefault(room_id, asyncio.Lock())
        fetched: dict[str, FetchedState] = {}
        for _ in range(MAX_TRIES):
            done = [event_id for event_id in staged if event_id not in deferred]
            if not ordered:
                await self._database.run(inbound.delete_staged, room_id, done)
                return Received([], {}, _lines(refused), [], deferred)
            try:
                async with lock, self._judging:
                    snapshot = await self._database.read(_read_snapshot, room_id, ordered)
                    gaps = _gaps_to_fetch(snapshot, ordered, fetched)
                    if not gaps:
                        received = await self._judge_and_store(
                            snapshot, ordered, fetched, done, deferred, after_storing
                        )
                        received.refused.extend(_lines(refused))
                        return received
            except (_RoomMoved, IntegrityError):
                logger.debug("the room changed while events were judged", room_id=room_id)
                continue
            to_fetch = to_fetch or await self._read_room_to_fetch(room)
            more, failed = await self._pieces.states(to_fetch, gaps, origins)
            fetched |= more
            ordered, dependent = without_descendants(ordered, failed)
            reason = "; ".join(list(failed.values())[:3])
            deferred |= {event.event_id: reason for event in dependent}
        return Received([], {}, [], [], dict.fromkeys(staged, "the room does not keep still"))

    async def _read_room_to_fetch(self, room: inbound.ReceivingRoom) -> RoomToFetch:
        return await self._database.read(self._load_room_to_fetch, room.room_id, room.room_version)

    async def _with_auth_events(
        self, room: RoomToFetch, events: Sequence[Event], origins: Mapping[str, str]
    ) -> tuple[list[Event], dict[str, str]]:
        """Splits events into those whose auth events are known and the others."""
        missing = await self._pieces.auth_events(room, events, origins)
        deferred: dict[str, str] = {}
        usable: list[Event] = []
        for event in events:
            lacking = [
                auth_id
                for auth_id in auth_dependencies(event)
                if auth_id in missing or auth_id in deferred
            ]
            if lacking:
                deferred[event.event_id] = f"its auth events are unknown: {', '.join(lacking[:3])}"
            else:
                usable.append(event)
        return usable, deferred

    async def _judge_and_store(
        self,
        snapshot: _Snapshot,
        events: Sequence[Event],
        fetched: Mapping[str, FetchedState],
        done: Collection[str],
        deferred: dict[str, str],
        after_storing: AfterStoring | None,
    ) -> Received:
        room_id = snapshot.room.room_id
        known = self._states.take(room_id)
        absent = [event for event in events if event.event_id not in snapshot.present]
        judgement, used = await asyncio.to_thread(
            self._judge, snapshot, absent, fetched, known, VerdictCache(self._database)
        )
        stored, group_ids = await self._database.run(
            _store,
            snapshot,
            events,
            judgement,
            done,
            after_storing,
            instance_name=self._instance_name,
            server_name=self._server_name,
            received_ts=int(time.time() * 1000),
        )
        for group, group_id in group_ids.items():
            group.group_id = group_id
        self._states.keep(room_id, known, used)
        judged = [result for result in judgement.events if result.event.event_id in stored]
        return Received(
            [result.event.event_id for result in judged],
            {r.event.event_id: r.rejection for r in judged if r.rejection is not None},
            [],
            [result.event.event_id for result in judged if result.soft_failed],
            deferred,
            bool(judgement.current_changes),
        )

    def _judge(
        self,
        snapshot: _Snapshot,
        events: Sequence[Event],
        fetched: Mapping[str, FetchedState],
        known: KnownStates,
        cache: VerdictCache,
    ) -> tuple[Judgement, list[RoomState]]:
        """Runs in a thread: loads the states that are not known and judges."""
        states_after: dict[str, RoomState] = {}
        for event_id, group in snapshot.groups.items():
            if group not in known.by_group:
                full = self._database.read_sync(state_groups.load_state, group)
                known.by_group[group] = known.states.adopt(full, event_id, group_id=group)
            states_after[event_id] = known.by_group[group]
        for event_id, state in fetched.items():
            if event_id not in states_after:
                states_after[event_id] = known.states.adopt(dict(state.state), event_id)
        around = Surroundings(
            room_version=snapshot.room.room_version,
            room_is_partial=snapshot.room.partial,
            parents=states_after,
            partial_parents=snapshot.partial_parents,
            extremities={i: states_after[i] for i in snapshot.extremities if i in states_after},
            followed=snapshot.followed,
        )
        judgement = judge(snapshot.room.room_id, events, around, known.states, cache)
        used = [*states_after.values(), *(result.state_after for result in judgement.events)]
        return judgement, used


def _look_up(connection: Connection, events: Sequence[Event]) -> tuple[set[str], bool]:
    """Those of `events` that are in the graph, and whether the others lack nothing."""
    own = {event.event_id for event in events}
    prev_ids = {prev_id for event in events for prev_id in event.prev_event_ids} - own
    auth_ids = {auth_id for event in events for auth_id in auth_dependencies(event)} - own
    in_graph = event_store.find_in_graph(connection, own | prev_ids)
    is_complete = prev_ids <= in_graph and auth_ids <= event_store.find_known(connection, auth_ids)
    return in_graph & own, is_complete


def _find_misplaced(
    connection: Connection, room_id: str, events: Sequence[Event]
) -> dict[str, str]:
    """The events that claim a place which no honest event has, with what is wrong.

    With a parent in another room an event would be judged by the state of that room; without any
    it would begin a second room beside the first.
    """
    prev_ids = {prev_id for event in events for prev_id in event.prev_event_ids}
    foreign = event_store.find_of_other_rooms(connection, room_id, prev_ids)
    misplaced = {
        event.event_id: "its prev_events are of another room"
        for event in events
        if not foreign.isdisjoint(event.prev_event_ids)
    }
    first = {event.event_id for event in events if not event.prev_event_ids}
    if first:
        first -= set(current_state.load_entries(connection, room_id, [CREATE]).values())
        misplaced |= dict.fromkeys(first, NO_PREV_EVENTS)
    return misplaced


def _gaps_to_fetch(
    snapshot: _Snapshot, events: Sequence[Event], fetched: Collection[str]
) -> list[str]:
    """The parents whose states have to be asked for; while the room is partial the resync does."""
    if snapshot.room.partial:
        return []
    known = {*snapshot.groups, *fetched}
    return list(missing_parents([e for e in events if e.event_id not in snapshot.present], known))


def _lines(refused: Mapping[str, str]) -> list[str]:
    return [f"{event_id}: {reason}" for event_id, reason in refused.items()]


def _read_snapshot(connection: Connection, room_id: str, events: Sequence[Event]) -> _Snapshot:
    room = inbound.load_receiving_rooms(connection, [room_id]).get(room_id)
    if room is None:
        raise NotInRoom(room_id)
    latest = extremities.load_forward_extremities(connection, room_id)
    own = [event.event_id for event in events]
    parents = {prev_id for event in events for prev_id in event.prev_event_ids}
    groups = state_groups.load_event_state_groups(
        connection, parents.union(latest), room_id=room_id
    )
    # The group of an outlier is none of its own; it is left from before the room was left.
    in_graph = event_store.find_in_graph(connection, {*groups, *own})
    return _Snapshot(
        room,
        in_graph.intersection(own),
        {event_id: group for event_id, group in groups.items() if event_id in in_graph},
        partial_state.find_partial_events(connection, parents) if room.partial else set(),
        latest,
        extremities.find_followed(connection, room_id, own),
    )


def _store(
    connection: Connection,
    snapshot: _Snapshot,
    events: Sequence[Event],
    judgement: Judgement,
    done: Collection[str],
    after_storing: AfterStoring | None,
    *,
    instance_name: str,
    server_name: str,
    received_ts: int,
) -> tuple[set[str], dict[PlannedGroup, int]]:
    """Stores a judged batch, in the caller's transaction.

    Args:
        events: the whole batch, with what was in the graph already.

    Raises:
        _RoomMoved: the room is not any more as it was when the batch was judged.
        NotInRoom: it has been left meanwhile.
    """
    room_id = snapshot.room.room_id
    rooms.lock_room(connection, room_id)
    now = _read_snapshot(connection, room_id, events)
    if now._replace(partial_parents=snapshot.partial_parents) != snapshot:
        raise _RoomMoved
    group_ids = store_groups(connection, room_id, judgement.groups)
    stored = event_store.insert_graph_events(
        connection,
        room_id,
        [
            GraphEvent(
                result.event,
                id_of(result.state_after.group, group_ids),
                result.rejection,
                result.soft_failed,
            )
            for result in judgement.events
        ],
        instance_name=instance_name,
        received_ts=received_ts,
    )
    partial_state.insert_partial_events(
        connection,
        room_id,
        [
            result.event.event_id
            for result in judgement.events
            if result.partial and result.event.event_id in stored
        ],
    )
    current_state.change_current_state(
        connection,
        room_id,
        judgement.current_changes,
        instance_name=instance_name,
        own_server=server_name,
    )
    inbound.delete_staged(connection, room_id, done)
    if after_storing is not None and stored:
        after_storing(connection)
    return stored, group_ids
