"""State resolution v2 and v2.1 once more, word by word and without any thought of speed.

Whole auth chains for whole states, sets of ids, a sort that looks at all candidates at each step:
what `resync.state` does in one walk over the differences is here done as the text has it. Used as
an oracle. It reads the text as `resync.state` does where that says so: a state's events are part
of its full auth chain; power events enlarge X through the full conflicted set; rejected events do
not enter the state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from federation.events import Event, StateKey
from federation.room_versions import StateResolution, get_room_version
from resync.auth import NotAuthorised, auth_types_for_event, check_auth_rules

State = Mapping[Any, str]
CREATE = StateKey("m.room.create", "")
POWER_LEVELS = StateKey("m.room.power_levels", "")


@dataclass
class Reference:
    """One resolution. `applied`: the events let in, each with what it was checked against."""

    room_version: str
    events: Mapping[str, Event]
    rejected: Collection[str] = ()
    applied: list[tuple[Event, dict[StateKey, Event]]] = field(default_factory=list)

    def resolve(self, state_sets: Sequence[State]) -> dict[Any, str]:
        v2_1 = get_room_version(self.room_version).state_resolution is StateResolution.V2_1
        keys = {key for state in state_sets for key in state}
        unconflicted = {
            key: state_sets[0][key]
            for key in keys
            if len({state.get(key) for state in state_sets}) == 1
        }
        conflicted = {
            state[key] for state in state_sets for key in keys - unconflicted.keys() if key in state
        }
        if not keys - unconflicted.keys():
            return unconflicted

        chains = [self.full_auth_chain(state) for state in state_sets]
        full = conflicted | (set().union(*chains) - chains[0].intersection(*chains[1:]))
        if v2_1:
            full |= {
                event_id
                for event_id in self.auth_chain(conflicted)
                if self.auth_chain([event_id]) & conflicted
            } & self.auth_chain(conflicted, itself=True)
        full = {event_id for event_id in full if event_id in self.events}

        power = {event_id for event_id in full if self.is_power_event(self.events[event_id])}
        while more := {a for e in power for a in self.auth_ids(e) if a in full} - power:
            power |= more
        ordered = self.reverse_topological_power_ordering(power)
        state = {} if v2_1 else dict(unconflicted)
        self.iterative_auth_checks(ordered, state)

        mainline = self.power_levels_back_from(state.get(POWER_LEVELS), itself=True)
        remaining = sorted(
            full - set(ordered), key=lambda event_id: self.mainline_key(event_id, mainline)
        )
        self.iterative_auth_checks(remaining, state)
        return {**state, **unconflicted}

    def auth_ids(self, event_id: str) -> list[str]:
        event = self.events.get(event_id)
        if event is None:
            return []
        found = list(event.auth_event_ids)
        if event.room_version.room_id_is_create_hash and event.type != "m.room.create":
            found.append("$" + event.room_id[1:])
        return found

    def auth_chain(self, event_ids: Collection[str], *, itself: bool = False) -> set[str]:
        chain = {a for event_id in event_ids for a in self.auth_ids(event_id)}
        while more := {a for event_id in chain for a in self.auth_ids(event_id)} - chain:
            chain |= more
        return chain | set(event_ids) if itself else chain

    def full_auth_chain(self, state: State) -> set[str]:
        return self.auth_chain(list(state.values()), itself=True)

    @staticmethod
    def is_power_event(event: Event) -> bool:
        if event.type == "m.room.member":
            kicks = event.content.get("membership") in ("leave", "ban")
            return kicks and event.sender != event.state_key
        types = ("m.room.power_levels", "m.room.join_rules", "m.room.create")
        return event.type in types and event.state_key == ""

    def reverse_topological_power_ordering(self, event_ids: set[str]) -> list[str]:
        ordered: list[str] = []
        left = set(event_ids)
        while left:
            candidates = [e for e in left if not left.intersection(self.auth_ids(e))]
            ordered.append(min(candidates, key=self.power_key))
            left.remove(ordered[-1])
        return ordered

    def power_key(self, event_id: str) -> tuple[float, int, str]:
        event = self.events[event_id]
        return -self.power_of_sender(event), event.origin_server_ts, event_id

    def power_of_sender(self, event: Event) -> float:
        known = [self.events[a] for a in self.auth_ids(event.event_id) if a in self.events]
        by_key = {e.key: e for e in known}
        create = by_key.get(CREATE)
        creator = None
        if create is not None:
            creators = [create.sender, *create.content.get("additional_creators", ())]
            if event.room_version.creators_outrank_power_levels and event.sender in creators:
                return float("inf")
            implicit = event.room_version.implicit_room_creator
            creator = create.sender if implicit else create.content.get("creator")
        if POWER_LEVELS in by_key:
            content = by_key[POWER_LEVELS].content
            return int(content.get("users", {}).get(event.sender, content.get("users_default", 0)))
        return 100 if event.sender == creator else 0

    def power_levels_back_from(self, event_id: str | None, *, itself: bool) -> list[str]:
        found = [event_id] if itself and event_id is not None else []
        while event_id is not None:
            event_id = next(
                (
                    a
                    for a in self.auth_ids(event_id)
                    if a in self.events and self.events[a].key == POWER_LEVELS
                ),
                None,
            )
            if event_id is not None:
                found.append(event_id)
        return found

    def mainline_key(self, event_id: str, mainline: list[str]) -> tuple[float, int, str]:
        position = float("inf")
        for before in self.power_levels_back_from(event_id, itself=False):
            if before in mainline:
                position = mainline.index(before)
                break
        return -position, self.events[event_id].origin_server_ts, event_id

    def iterative_auth_checks(self, ordered: list[str], state: dict[Any, str]) -> None:
        for event_id in ordered:
            event = self.events[event_id]
            if event_id in self.rejected or event.state_key is None:
                continue
            auth_state: dict[StateKey, Event] = {}
            for auth_id in self.auth_ids(event_id):
                if auth_id in self.events and auth_id not in self.rejected:
                    auth_state[self.events[auth_id].key] = self.events[auth_id]
            for key in auth_types_for_event(event) | {CREATE}:
                found = state.get(key)
                if found in self.events and found not in self.rejected:
                    auth_state[key] = self.events[found]
            try:
                if event.type != "m.room.create":
                    check_auth_rules(event, auth_state)
            except NotAuthorised:
                continue
            self.applied.append((event, auth_state))
            state[event.key] = event_id
