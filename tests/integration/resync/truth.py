"""What must be true of a room after a resync, from the simulator's record of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from federation.events import Event, StateKey
from federation.simulator import BuiltEvent, RoomBuilder
from resync.auth import NotAuthorised, check_auth_rules
from resync.state import resolve
from tests.integration.resync.our_server import OurServer, State, as_plain


def resolved(room: RoomBuilder, event_ids: Iterable[str]) -> State:
    """The resolution of the true states after `event_ids`."""
    states = [as_plain(room.state_after(event_id)) for event_id in event_ids]
    if all(state == states[0] for state in states):
        return states[0]
    named = {event_id for state in states for event_id in state.values()}
    rejected = [
        event_id for event_id in (*named, *room.auth_chain(named)) if room.events[event_id].rejected
    ]
    return resolve(room.version.identifier, states, RoomEvents(room), rejected=rejected)


class RoomEvents(Mapping[str, Event]):
    """The events of a room by id, parsed when they are looked at."""

    def __init__(self, room: RoomBuilder) -> None:
        self._room = room
        self._parsed: dict[str, Event] = {}

    def __getitem__(self, event_id: str) -> Event:
        if event_id not in self._parsed:
            self._parsed[event_id] = self._room.event(event_id)
        return self._parsed[event_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._room.events)

    def __len__(self) -> int:
        return len(self._room.events)


class RoomState(Mapping[StateKey, Event]):
    """A state with its events, parsed when they are looked at."""

    def __init__(self, room: RoomBuilder, state: State) -> None:
        self._events = RoomEvents(room)
        self._state = state

    def __getitem__(self, key: StateKey) -> Event:
        return self._events[self._state[key]]

    def __iter__(self) -> Iterator[StateKey]:
        return (StateKey(*key) for key in self._state)

    def __len__(self) -> int:
        return len(self._state)


def append(
    room: RoomBuilder,
    event_type: str,
    content: dict[str, Any],
    *,
    prev_events: Sequence[str],
    sender: str,
    state_key: str | None = None,
    **how: Any,
) -> BuiltEvent:
    """An event anywhere in the room, with the true state before it and the true verdict on it."""
    before = resolved(room, prev_events)
    event = Event.from_pdu(
        {
            "type": event_type,
            "content": content,
            "sender": sender,
            "room_id": room.room_id,
            "depth": 1,
            "origin_server_ts": 0,
            "prev_events": [],
            "auth_events": [],
            **({} if state_key is None else {"state_key": state_key}),
        },
        room.version.identifier,
        event_id="$draft:draft",
    )
    try:
        check_auth_rules(event, RoomState(room, before))
        rejected = False
    except NotAuthorised:
        rejected = True
    return room.append(
        event_type,
        content,
        sender=sender,
        state_key=state_key,
        prev_events=prev_events,
        state_before=before,
        rejected=rejected,
        **how,
    )


class Quarrel:
    """A room that goes on: people talk, rename, kick, ban and promote each other, on forks.

    The same seed gives the same events.
    """

    def __init__(self, room: RoomBuilder, users: Sequence[str], seed: int) -> None:
        """`users`: who takes part, whatever their membership; the creator does anyway."""
        self.room = room
        self.events: list[BuiltEvent] = []
        self._users = [room.creator, *users]
        self._random = random.Random(seed)
        self._tips = list(room.forward_extremities)

    def go_on(self, count: int) -> list[BuiltEvent]:
        """`count` more events."""
        for _ in range(count):
            self.events.append(self._step())
        return self.events[-count:]

    def merge(self) -> BuiltEvent:
        """One more event, which brings all forks together again."""
        event = append(
            self.room,
            "m.room.message",
            {"body": "Merged"},
            prev_events=self._tips,
            sender=self.room.creator,
        )
        assert not event.rejected
        self.events.append(event)
        self._tips = [event.event_id]
        return event

    def _step(self) -> BuiltEvent:
        chance = self._random
        # Of several tips one or two are taken up; an event behind them opens another fork.
        prev = chance.sample(self._tips, min(len(self._tips), chance.choice((1, 1, 2))))
        if self.events and len(self._tips) < 4 and chance.random() < 0.25:
            accepted = [event for event in self.events[-6:] if not event.rejected]
            prev = [chance.choice(accepted).event_id] if accepted else prev
        event = append(self.room, prev_events=prev, **self._deed(prev))
        if not event.rejected:
            self._tips = [tip for tip in self._tips if tip not in prev] + [event.event_id]
        return event

    def _deed(self, prev: Sequence[str]) -> dict[str, Any]:
        chance = self._random
        sender, other = chance.choice(self._users), chance.choice(self._users)
        deed = chance.choice(
            ("message", "message", "rename", "kick", "ban", "join", "topic", "name", "power")
        )
        number = len(self.events)
        if deed == "message":
            return {
                "event_type": "m.room.message",
                "content": {"body": f"Message {number}"},
                "sender": sender,
            }
        if deed in ("topic", "name"):
            return {
                "event_type": f"m.room.{deed}",
                "content": {deed: f"{deed} {number}"},
                "sender": sender,
                "state_key": "",
            }
        if deed == "power":
            power_levels = resolved(self.room, prev)["m.room.power_levels", ""]
            content = self.room.pdu(power_levels)["content"]
            level = chance.choice((0, 50, 60))
            users = dict(content.get("users", {}))
            if other != self.room.creator:
                users[other] = level
            return {
                "event_type": "m.room.power_levels",
                "content": {**content, "users": users},
                "sender": chance.choice((sender, self.room.creator)),
                "state_key": "",
            }
        membership = {"kick": "leave", "ban": "ban"}.get(deed, "join")
        target = sender if deed in ("rename", "join") else other
        if target == self.room.creator:
            # Somebody has to be left who can merge the forks.
            membership = "join"
        return {
            "event_type": "m.room.member",
            "content": {"membership": membership, "displayname": f"Name {number}"},
            "sender": sender,
            "state_key": target,
        }


def check_truth(
    ours: OurServer,
    room: RoomBuilder,
    join_event_id: str,
    events: Sequence[BuiltEvent],
    *,
    rooms: int = 1,
    all_announced: bool = True,
) -> None:
    """Checks that the room is fully stated and everything about it is true.

    Args:
        events: what was received while the room was partial.
        rooms: how many rooms there are in the database.
        all_announced: false when some events came after their parents were fully stated: such an
            event never is partial, so nothing is announced of it.
    """
    assert ours.announced_rooms().count(room.room_id) == 1
    assert len(ours.announced_rooms()) == rooms
    in_room = [row for row in ours.partial_rows() if room.room_id in row]
    assert in_room == []
    received = [join_event_id, *(event.event_id for event in events)]

    states = ours.states_after(received)
    wrong = [
        event_id
        for event_id in received
        if states[event_id] != as_plain(room.state_after(event_id))
    ]
    assert wrong == [], _difference(room, states[wrong[0]], wrong[0])

    rejected = ours.rejected(room)
    truly_rejected = {event_id for event_id in room.events if room.events[event_id].rejected}
    assert rejected & set(received) == truly_rejected & set(received)

    announced = ours.announced_events()
    expected = received if all_announced else [join_event_id]
    assert [event_id for event_id in expected if event_id not in announced] == []

    tips = forward_extremities(room, received)
    stored_tips = ours.column(
        "SELECT event_id FROM event_forward_extremities WHERE room_id = :room_id",
        room_id=room.room_id,
    )
    assert stored_tips == sorted(tips)
    current = ours.current_state(room)
    assert current == resolved(room, tips)
    memberships = dict(
        ours.query(
            "SELECT event_id, membership FROM current_state_events WHERE room_id = :room_id",
            room_id=room.room_id,
        )
    )
    assert memberships == {
        event_id: room.events[event_id].membership for event_id in current.values()
    }
    stored = ours.column("SELECT event_id FROM event_json WHERE room_id = :r", r=room.room_id)
    assert set(current.values()) <= set(stored)


def forward_extremities(room: RoomBuilder, received: Sequence[str]) -> set[str]:
    """The accepted ones of `received` that no accepted one of them follows."""
    accepted = {event_id for event_id in received if not room.events[event_id].rejected}
    followed: set[str] = set()
    todo = [prev for event_id in accepted for prev in room.events[event_id].prev_event_ids]
    while todo:
        prev_id = todo.pop()
        if prev_id not in followed:
            followed.add(prev_id)
            event = room.events.get(prev_id)
            if event is not None and event.rejected:
                # What only a rejected event stands between is followed all the same.
                todo.extend(event.prev_event_ids)
    return accepted - followed


def _difference(room: RoomBuilder, state: State, event_id: str) -> str:
    expected = as_plain(room.state_after(event_id))
    keys = [key for key in {*state, *expected} if state.get(key) != expected.get(key)]
    shown = "\n".join(
        f"  {key}: {state.get(key)}, not {expected.get(key)}" for key in sorted(keys)[:10]
    )
    return f"the state after {room.events[event_id]} is wrong in {len(keys)} entries:\n{shown}"
