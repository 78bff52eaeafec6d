"""Events that arrive while a room is partial: checked against partial state, stored as partial.

Source: faster joins, "Partial state"; design, section 3, step 2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from federation.client import RawPdu
from federation.events import Event
from resync.outliers import Verdict, auth_dependencies
from resync.room_writer import id_of, store_groups
from resync.verify import PduVerifier
from resync.walk.recheck import Rechecked, recheck_batch
from resync.walk.states import PlannedGroup, RoomState, RoomStates
from resync.walk.verdict_cache import VerdictCache
from storage import events as event_store
from storage import extremities, partial_state, state_groups
from storage.database import Database
from storage.errors import RoomNotPartial

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """What became of the PDUs of one batch.

    Attributes:
        stored: ids of the events stored now, in the order in which they were.
        rejected: those of them that are rejected, with the reason.
        refused: PDUs that were not stored: dropped, or their auth events are unknown.
    """

    stored: list[str]
    rejected: dict[str, str]
    refused: list[str]


class Receiver:
    """Receives events of partial rooms."""

    def __init__(self, *, database: Database, verifier: PduVerifier, instance_name: str) -> None:
        self._database = database
        self._verifier = verifier
        self._instance_name = instance_name

    async def receive(self, room_id: str, pdus: Sequence[RawPdu]) -> Received:
        """Checks 1 to 5 as they read in partial state, then stores the events.

        Check 6 is skipped. An event is marked as partial when one of its parents is, or is
        unknown: the state before it is then an approximation, which the resync corrects.

        Raises:
            RoomNotPartial: the room is unknown or fully stated.
        """
        room = await self._database.read(partial_state.load_partial_room, room_id)
        if room is None or room.room_version is None:
            raise RoomNotPartial(room_id)
        checked = await self._verifier.verify(pdus, room_version=room.room_version, room_id=room_id)
        refused = [f"{dropped.event_id}: {dropped.reason}" for dropped in checked.dropped]
        known = await self._database.read(
            event_store.find_in_graph, [event.event_id for event in checked.events]
        )
        events = sorted(
            (event for event in checked.events if event.event_id not in known),
            key=lambda event: (event.depth, event.event_id),
        )
        events, without_auth = await self._with_auth_events(events)
        refused += [f"{event.event_id}: its auth events are unknown" for event in without_auth]
        if not events:
            return Received([], {}, refused)
        results, groups = await self._check(room_id, room.room_version, events)
        await self._database.run(
            _store, room_id, results, groups, self._instance_name, int(time.time() * 1000)
        )
        rejected = {r.event.event_id: r.rejection for r in results if r.rejection is not None}
        return Received([result.event.event_id for result in results], rejected, refused)

    async def _with_auth_events(self, events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """Splits events into those whose auth events are known and the others."""
        own = {event.event_id: event for event in events}
        wanted = {event_id for event in events for event_id in auth_dependencies(event)}
        stored = await self._database.read(event_store.find_known, wanted - own.keys())
        usable = dict(own)
        while True:
            # What cannot be used takes with it what names it as auth event.
            known = stored | usable.keys()
            kept = {
                event_id: event
                for event_id, event in usable.items()
                if known.issuperset(auth_dependencies(event))
            }
            if len(kept) == len(usable):
                break
            usable = kept
        return list(usable.values()), [own[event_id] for event_id in own.keys() - usable.keys()]

    async def _check(
        self, room_id: str, room_version: str, events: Sequence[Event]
    ) -> tuple[list[Rechecked], list[PlannedGroup]]:
        parents = {prev_id for event in events for prev_id in event.prev_event_ids}
        groups = await self._database.read(state_groups.load_event_state_groups, parents)
        latest = await self._database.read(extremities.load_forward_extremities, room_id)
        if not groups:
            # Nothing is known of the parents: the current partial state is the best guess.
            groups = await self._database.read(state_groups.load_event_state_groups, latest)
        states = RoomStates()
        states_after: dict[str, RoomState] = {}
        for event_id, group in groups.items():
            full = await self._database.read(state_groups.load_state, group)
            states_after[event_id] = states.adopt(full, event_id, group_id=group)
        for prev_id in parents - states_after.keys() - {event.event_id for event in events}:
            states_after[prev_id] = next(iter(states_after.values()))
        cache = VerdictCache(self._database)
        for event in events:
            cache.set(Verdict(event, None))
        results = await asyncio.to_thread(
            recheck_batch,
            room_version,
            [event.event_id for event in events],
            states,
            states_after,
            cache,
            partial=True,
        )
        return results, states.take_new_groups()


def _store(
    connection: Connection,
    room_id: str,
    results: Sequence[Rechecked],
    groups: Sequence[PlannedGroup],
    instance_name: str,
    received_ts: int,
) -> None:
    """Stores received events with their partial state, in the caller's transaction.

    Raises:
        RoomNotPartial: the room has become fully stated meanwhile.
    """
    stored = store_groups(connection, room_id, groups)
    for result in results:
        event_store.insert_event(
            connection,
            result.event,
            state_group=id_of(result.state_after.group, stored),
            rejection_reason=result.rejection,
            instance_name=instance_name,
            received_ts=received_ts,
        )
    try:
        partial_state.insert_partial_events(
            connection, room_id, [result.event.event_id for result in results]
        )
    except IntegrityError as error:
        raise RoomNotPartial(room_id) from error
