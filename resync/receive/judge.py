"""Checks 4 to 6 on a batch of events of one room, each after its parents.

Nothing here does I/O of its own: stored events come from a cache that loads them in bulk.
Source: server-server API, "Checks performed on receipt of a PDU" and "Soft failure"; faster
joins, "Partial state".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from federation.events import Event, StateKey
from resync.auth import state_needed_for_event
from resync.outliers import Verdict, auth_dependencies, check_against_auth_events
from resync.walk.recheck import (
    check_against_state,
    resolve_states,
    resolve_with_auth_events,
)
from resync.walk.states import Changes, PlannedGroup, RoomState, RoomStates
from resync.walk.verdict_cache import VerdictCache


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a room where a batch of events is put into it.

    Attributes:
        room_is_partial: the room is in partial state.
        parents: the states after the parents of the batch; where the room is partial those that
            we do not have may be absent.
        partial_parents: those of the parents whose state is partial.
        extremities: the forward extremities and the states after them.
        followed: events of the batch that an accepted event in the graph refers to already.
    """

    room_version: str
    room_is_partial: bool
    parents: Mapping[str, RoomState]
    partial_parents: Collection[str]
    extremities: Mapping[str, RoomState]
    followed: Collection[str]


@dataclass(frozen=True, slots=True)
class Judged:
    """An event, its verdict and its place.

    Attributes:
        state_after: its state group is the one to store for the event.
        rejection: why it is rejected by checks 4 or 5; None when it is accepted.
        partial: the state is an approximation, to be corrected by the resync.
        soft_failed: accepted, but not by the current state of the room (check 6).
    """

    event: Event
    state_after: RoomState
    rejection: str | None
    partial: bool
    soft_failed: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome for a batch.

    Attributes:
        events: in the order in which they are to be stored.
        groups: the state groups to store for them, parents before children.
        current_changes: what changes in the current state; None takes an entry away.
    """

    events: list[Judged]
    groups: list[PlannedGroup]
    current_changes: dict[StateKey, str | None]


def judge(
    room_id: str,
    events: Sequence[Event],
    around: Surroundings,
    states: RoomStates,
    cache: VerdictCache,
) -> Judgement:
    """Judges `events`, which are in graph order and whose auth events are stored or among them."""
    return _Judge(room_id, around, states, cache).run(events)


class _Judge:
    def __init__(
        self, room_id: str, around: Surroundings, states: RoomStates, cache: VerdictCache
    ) -> None:
        self._room_id = room_id
        self._around = around
        self._states = states
        self._cache = cache
        self._after: dict[str, RoomState] = dict(around.parents)
        self._partial: set[str] = set(around.partial_parents)
        self._extremities: dict[str, RoomState] = dict(around.extremities)
        self._uncounted: dict[str, tuple[str, ...]] = {}
        self._current: RoomState | None = None
        self._resolved: dict[tuple[RoomState, tuple[str, ...]], Changes] = {}

    def run(self, events: Sequence[Event]) -> Judgement:
        for event in events:
            self._cache.set(Verdict(event, None))
        candidates = self._candidates(events)
        if self._around.room_is_partial:
            # Check 5 then resolves: the chains of all events are loaded at once.
            self._cache.preload_auth_chains(candidates.union(event.event_id for event in events))
        self._cache.preload(candidates)
        before = self._current_state() if self._extremities else None
        judged = [self._judge(event) for event in events]
        after = self._current_state()
        return Judgement(judged, self._needed_groups(judged), self._difference(before, after))

    def _judge(self, event: Event) -> Judged:
        is_gap = [prev_id for prev_id in event.prev_event_ids if prev_id not in self._after]
        parents = [self._after[i] for i in event.prev_event_ids if i in self._after]
        if is_gap and self._around.room_is_partial:
            # Of what we do not have, the current partial state is the best guess.
            parents.append(self._current_state())
        partial = self._around.room_is_partial and (
            bool(is_gap) or not self._partial.isdisjoint(event.prev_event_ids)
        )
        before = resolve_states(
            self._around.room_version, self._states, parents, self._cache, event.event_id
        )
        rejection = self._check(event, before, partial)
        after = before
        if rejection is None and event.is_state:
            after = self._states.with_event(before, event.key, event.event_id)
        soft_failed = rejection is None and self._is_soft_failed(event, before)
        self._cache.set(Verdict(event, rejection))
        self._after[event.event_id] = after
        if partial:
            self._partial.add(event.event_id)
        if rejection is None and not soft_failed:
            self._advance(event, after)
        else:
            self._uncounted[event.event_id] = event.prev_event_ids
        return Judged(event, after, rejection, partial, soft_failed)

    def _check(self, event: Event, before: RoomState, partial: bool) -> str | None:
        """Checks 4 and 5."""
        known = self._cache.known(auth_dependencies(event))
        rejection = check_against_auth_events(event, known)
        if rejection is not None:
            return rejection
        if not partial:
            return check_against_state(
                event, lambda key: self._states.value(before, key), self._cache
            )
        # Most events of a batch are sent by few users from the same state.
        memo = (before, tuple(event.auth_event_ids))
        resolved = self._resolved.get(memo)
        if resolved is None:
            resolved = resolve_with_auth_events(event, self._states, before, self._cache)
            self._resolved[memo] = resolved

        def entry(key: StateKey) -> str | None:
            return resolved[key] if key in resolved else self._states.base.get(key)

        return check_against_state(event, entry, self._cache)

    def _is_soft_failed(self, event: Event, before: RoomState) -> bool:
        """Check 6, which a room in partial state does without."""
        if self._around.room_is_partial or not self._extremities:
            return False
        current = self._current_state()
        if current is before:
            return False
        return (
            check_against_state(event, lambda key: self._states.value(current, key), self._cache)
            is not None
        )

    def _advance(self, event: Event, after: RoomState) -> None:
        """The event takes the place of its parents among the forward extremities."""
        if event.event_id in self._around.followed:
            return
        todo = list(event.prev_event_ids)
        while todo:
            prev_id = todo.pop()
            self._extremities.pop(prev_id, None)
            todo.extend(self._uncounted.pop(prev_id, ()))
        self._extremities[event.event_id] = after
        self._current = None

    def _current_state(self) -> RoomState:
        if self._current is None:
            self._current = resolve_states(
                self._around.room_version,
                self._states,
                list(self._extremities.values()),
                self._cache,
                # The current state belongs to no event; the room id stands in for one.
                self._room_id,
            )
        return self._current

    def _candidates(self, events: Sequence[Event]) -> set[str]:
        """Whatever the checks may look at, so that it is loaded at once."""
        states = {id(s): s for s in (*self._after.values(), *self._extremities.values())}
        keys = {key for event in events for key in state_needed_for_event(event)}
        wanted = {event_id for event in events for event_id in auth_dependencies(event)}
        for key in keys:
            values = [self._states.base.get(key), *(s.changes.get(key) for s in states.values())]
            wanted.update(value for value in values if value is not None)
        return wanted

    def _needed_groups(self, judged: Sequence[Judged]) -> list[PlannedGroup]:
        """The planned groups that the events need; resolving has planned others on the way."""
        needed: set[int] = set()
        for result in judged:
            group: PlannedGroup | None = result.state_after.group
            while group is not None and group.group_id is None and id(group) not in needed:
                needed.add(id(group))
                group = group.prev
        return [group for group in self._states.take_new_groups() if id(group) in needed]

    def _difference(self, before: RoomState | None, after: RoomState) -> dict[StateKey, str | None]:
        if after is before:
            return {}
        if before is None:
            return dict(self._states.full(after))
        keys = before.changes.keys() | after.changes.keys()
        return {
            key: self._states.value(after, key)
            for key in keys
            if self._states.value(after, key) != self._states.value(before, key)
        }
