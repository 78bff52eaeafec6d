"""Answers, with Synapse's own code, how state resolves and whether events are authorised.

Run as a separate process by the interpreter of a virtual environment that has Synapse; the only
file here that imports it. It is never imported by this project or its tests, and is no part of
what is distributed. It calls Synapse's functions (AGPL-3.0) and contains none of its code.

JSON lines on standard input, one answer line each on standard output, in order:

`{"op": "room", "room_version", "events": [pdu, ...], "rejected": [event id, ...]}`
    The room that the following requests are about. Answer: `{"event_ids": [...], "room_id"}`,
    the ids as Synapse computes them, in the order of `events`. An event that Synapse cannot
    represent at all has `null` there. One whose auth events it refuses to read (in version 12,
    those that name the create event) has an id and is rejected.
`{"op": "resolve", "state_sets": [[[type, state_key, event id], ...], ...]}`
    Answer: `{"state": [[type, state_key, event id], ...], "own_difference": bool}`, or
    `{"exception"}` where Synapse raised one. `own_difference`: Synapse itself computed the auth
    chain difference and conflicted subgraph (it does so for events it has not stored); otherwise
    `MemoryStore` did, because Synapse's way of doing that visits every path of the auth DAG.
`{"op": "auth", "checks": [{"event_id", "state": [event id, ...]}, ...]}`
    Answer: `{"verdicts": [{"step", "reason"}, ...]}`. `step` is the first check on receipt that
    rejects the event: "events" (what its auth events are), "auth" (the rules against its auth
    events), "state" (the rules against the given state before it, `null` to leave that out), or
    "" when it is accepted. `reason` is the error as text; one that is not Synapse's way of
    rejecting an event starts with "exception".
`{"op": "time", "state_sets", "repeat": n}`
    Answer: `{"seconds": [...], "entries": n}`: n resolutions of state sets, each from nothing but
    the events in memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from synapse import event_auth
from synapse.api.errors import SynapseError
from synapse.api.room_versions import KNOWN_ROOM_VERSIONS, StateResolutionVersions
from synapse.events import make_event_from_dict
from synapse.state import v1, v2
from synapse.storage.databases.main.event_federation import StateDifference

StateMap = dict[tuple[str, str], str]
T = TypeVar("T")

MAX_PATHS = 20_000
"""Auth DAGs with more paths than this are left to `MemoryStore`."""


class Clock:
    """Synapse yields to its event loop now and then; there is none here."""

    async def sleep(self, duration: object) -> None:
        return None


class MemoryStore:
    """What state resolution asks of storage, over the events of one room in memory."""

    def __init__(self, events: Mapping[str, Any]) -> None:
        self._events = events
        self._auth_ids = {
            event_id: tuple(a for a in event.auth_event_ids() if a in events)
            for event_id, event in events.items()
        }

    async def get_events(
        self, event_ids: Iterable[str], allow_rejected: bool = False, **_: Any
    ) -> dict[str, Any]:
        found = {e: self._events[e] for e in event_ids if e in self._events}
        if allow_rejected:
            return found
        return {e: event for e, event in found.items() if event.rejected_reason is None}

    async def get_auth_chain_difference(
        self,
        room_id: str,
        state_sets: Sequence[set[str]],
        conflicted_state: set[str] | None,
        additional_backwards_reachable_conflicted_events: set[str] | None,
    ) -> StateDifference:
        chains = [self._reachable(state_set) for state_set in state_sets]
        difference = chains[0].union(*chains[1:]) - chains[0].intersection(*chains[1:])
        subgraph = None
        if conflicted_state is not None:
            further = additional_backwards_reachable_conflicted_events or set()
            subgraph = self._subgraph(conflicted_state, further)
        return StateDifference(auth_difference=difference, conflicted_subgraph=subgraph)

    def _reachable(self, event_ids: Iterable[str]) -> set[str]:
        """The events and their auth chains."""
        todo = [e for e in event_ids if e in self._auth_ids]
        seen = set(todo)
        while todo:
            for auth_id in self._auth_ids[todo.pop()]:
                if auth_id not in seen:
                    seen.add(auth_id)
                    todo.append(auth_id)
        return seen

    def _subgraph(self, conflicted: set[str], further: set[str]) -> set[str]:
        """The events on a path of auth events from one conflicted event to another."""
        below = self._reachable(conflicted | further)
        citing: dict[str, list[str]] = {}
        for event_id in below:
            for auth_id in self._auth_ids[event_id]:
                citing.setdefault(auth_id, []).append(event_id)
        todo = [e for e in conflicted if e in below]
        subgraph = set(todo)
        while todo:
            for event_id in citing.get(todo.pop(), ()):
                if event_id not in subgraph:
                    subgraph.add(event_id)
                    todo.append(event_id)
        return subgraph

    def count_paths(self, limit: int) -> int:
        """The number of downward paths in the (acyclic) auth DAG, or more than `limit`."""
        paths: dict[str, int] = {}
        total = 0
        for start in self._auth_ids:
            todo = [start]
            while todo:
                event_id = todo[-1]
                missing = [a for a in self._auth_ids[event_id] if a not in paths]
                if missing:
                    todo.extend(missing)
                    continue
                todo.pop()
                paths[event_id] = 1 + sum(paths[a] for a in self._auth_ids[event_id])
            total += paths[start]
            if total > limit:
                return total
        return total


class Room:
    """The events of one room and the questions about them."""

    def __init__(
        self, room_version: str, pdus: Sequence[Mapping[str, Any]], rejected: Iterable[str]
    ) -> None:
        self._version = KNOWN_ROOM_VERSIONS[room_version]
        self.event_ids: list[str | None] = []
        self._events: dict[str, Any] = {}
        self._unreadable: dict[str, str] = {}
        rejected = frozenset(rejected)
        for pdu in pdus:
            event = self._event(pdu, rejected)
            self.event_ids.append(event and event.event_id)
            if event is None:
                continue
            try:
                event.auth_event_ids()
            except RuntimeError as error:
                self._unreadable[event.event_id] = str(error).splitlines()[0]
            else:
                self._events.setdefault(event.event_id, event)
        # A version 12 create event gets its room id from its event id.
        self.room_id = next((event.room_id for event in self._events.values()), "")
        self._store = MemoryStore(self._events)
        self._few_paths = self._store.count_paths(MAX_PATHS) <= MAX_PATHS

    def _event(self, pdu: Mapping[str, Any], rejected: frozenset[str]) -> Any:
        try:
            event = make_event_from_dict(dict(pdu), self._version)
            if event.event_id in rejected:
                event = make_event_from_dict(dict(pdu), self._version, rejected_reason="auth_error")
        except Exception:
            return None
        return event

    def resolve(self, state_sets: Sequence[StateMap]) -> dict[str, Any]:
        own = self._version.state_res == StateResolutionVersions.V1 or self._few_paths
        unstored = dict(self._events) if own else {}
        try:
            state = self._resolve(state_sets, unstored)
        except Exception as error:
            return {"exception": _describe(error)}
        return {"state": [[*key, e] for key, e in state.items()], "own_difference": own}

    def _resolve(self, state_sets: Sequence[StateMap], unstored: dict[str, Any]) -> StateMap:
        if self._version.state_res == StateResolutionVersions.V1:
            return dict(
                _run(
                    v1.resolve_events_with_store(
                        self.room_id, self._version, state_sets, None, self._store.get_events
                    )
                )
            )
        store = MemoryStore({}) if unstored else self._store
        return dict(
            _run(
                v2.resolve_events_with_store(
                    Clock(), self.room_id, self._version, state_sets, unstored, store
                )
            )
        )

    def time(self, state_sets: Sequence[StateMap], repeat: int) -> dict[str, Any]:
        seconds, entries = [], 0
        for _ in range(repeat):
            start = time.perf_counter()
            entries = len(self._resolve(state_sets, {}))
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "entries": entries}

    def check(self, event_id: str, state: Sequence[str] | None) -> dict[str, str]:
        if event_id in self._unreadable:
            return {"step": "events", "reason": self._unreadable[event_id]}
        event = self._events[event_id]
        auth_events = [self._events[a] for a in event.auth_event_ids() if a in self._events]
        if len(auth_events) < len(set(event.auth_event_ids())):
            return {"step": "events", "reason": "an auth event is missing"}
        steps: Iterator[tuple[str, Any]] = iter(
            (
                ("events", lambda: _run(self._check_auth_events(event))),
                ("auth", lambda: self._check_rules(event, auth_events)),
                ("state", lambda: self._check_state(event, state)),
            )
        )
        for step, check in steps:
            try:
                check()
            except SynapseError as error:  # AuthError, and what some rules raise instead of it
                return {"step": step, "reason": error.msg}
            except Exception as error:
                return {"step": step, "reason": f"exception {_describe(error)}"}
        return {"step": "", "reason": ""}

    async def _check_auth_events(self, event: Any) -> None:
        await event_auth.check_state_independent_auth_rules(
            self._store, event, batched_auth_events=self._events
        )

    def _check_rules(self, event: Any, auth_events: Iterable[Any]) -> None:
        event_auth.check_state_dependent_auth_rules(event, auth_events)

    def _check_state(self, event: Any, state: Sequence[str] | None) -> None:
        if state is None:
            return
        wanted = event_auth.auth_types_for_event(self._version, event)
        before = [self._events[event_id] for event_id in state]
        self._check_rules(event, [e for e in before if (e.type, e.state_key) in wanted])


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("Synapse waited for something that is not there")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _state_sets(request: Mapping[str, Any]) -> list[StateMap]:
    return [
        {(event_type, state_key): event_id for event_type, state_key, event_id in entries}
        for entries in request["state_sets"]
    ]


def main() -> None:
    room: Room | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if request["op"] == "room":
            room = Room(request["room_version"], request["events"], request["rejected"])
            answer = {"event_ids": room.event_ids, "room_id": room.room_id}
        elif room is None:
            raise ValueError("no room yet")
        elif request["op"] == "resolve":
            answer = room.resolve(_state_sets(request))
        elif request["op"] == "auth":
            answer = {
                "verdicts": [room.check(c["event_id"], c["state"]) for c in request["checks"]]
            }
        elif request["op"] == "time":
            answer = room.time(_state_sets(request), request["repeat"])
        else:
            raise ValueError(f"unknown op {request['op']!r}")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
