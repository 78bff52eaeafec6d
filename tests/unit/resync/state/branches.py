"""Histories written by hand: a room, its branches, and what is sent on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from federation.events import Event
from federation.room_versions import ROOM_VERSIONS, EventFormat
from resync.auth import select_auth_events

CREATOR = "@creator:example"
ALICE = "@alice:example"
BOB = "@bob:example"
CAROL = "@carol:example"
CREATE = ("m.room.create", "")
POWER_LEVELS = ("m.room.power_levels", "")
JOIN_RULES = ("m.room.join_rules", "")
TOPIC = ("m.room.topic", "")


def member(user: str) -> tuple[str, str]:
    return ("m.room.member", user)


class Branch:
    """One branch of a room: its state, and the events that all branches share."""

    def __init__(
        self, room_version: str, events: dict[str, Event], state: dict[tuple[str, str], str]
    ) -> None:
        self.version = ROOM_VERSIONS[room_version]
        self.events = events
        self.state = state

    def fork(self) -> Branch:
        """A second branch from here."""
        return Branch(self.version.identifier, self.events, dict(self.state))

    def send(
        self,
        sender: str,
        event_type: str,
        content: dict[str, Any],
        state_key: str | None = "",
        *,
        ts: int | None = None,
        depth: int | None = None,
        event_id: str | None = None,
        auth_events: Sequence[str] | None = None,
        prev_events: Sequence[str] = (),
        room_id: str = "!create",
    ) -> str:
        """Send an event, set its entry if it is a state event, and give its id.

        Time and depth grow with every event where they are not given; auth events are selected
        from the branch's state.
        """
        number = len(self.events)
        pdu: dict[str, Any] = {
            "type": event_type,
            "sender": sender,
            "content": content,
            "state_key": state_key,
            "origin_server_ts": number if ts is None else ts,
            "depth": number if depth is None else depth,
            "room_id": room_id,
        }
        if auth_events is None:
            auth_events = select_auth_events(self.version, pdu, self.state)  # type: ignore[arg-type]
        pairs = self.version.event_format is EventFormat.V1
        pdu["auth_events"] = [[i, {}] if pairs else i for i in auth_events]
        pdu["prev_events"] = [[i, {}] if pairs else i for i in prev_events]
        event_id = event_id or f"${number:04}"
        event = Event.from_pdu(pdu, self.version.identifier, event_id=event_id)
        self.events[event_id] = event
        if state_key is not None:
            self.state[event_type, state_key] = event_id
        return event_id

    def membership(self, user: str, membership: str, by: str | None = None, **more: Any) -> str:
        """Change a user's membership."""
        content = {"membership": membership, **more.pop("content", {})}
        return self.send(by or user, "m.room.member", content, user, **more)

    def power_levels(self, users: dict[str, int], by: str = CREATOR, **more: Any) -> str:
        """Set the power levels; before version 12 the creator has 100."""
        if not self.version.creators_outrank_power_levels:
            users = {CREATOR: 100, **users}
        return self.send(by, "m.room.power_levels", {"users": users}, **more)

    def join_rule(self, join_rule: str, by: str = CREATOR, **more: Any) -> str:
        """Set the join rule."""
        return self.send(by, "m.room.join_rules", {"join_rule": join_rule}, **more)

    def topic(self, by: str, topic: str = "", **more: Any) -> str:
        """Set the topic."""
        return self.send(by, "m.room.topic", {"topic": topic}, **more)


def new_room(room_version: str, *, power_levels: dict[str, int] | None = None) -> Branch:
    """A public room of the creator, with power levels unless there are none to be."""
    room = Branch(room_version, {}, {})
    room.send(CREATOR, "m.room.create", {"creator": CREATOR}, event_id="$create")
    room.membership(CREATOR, "join", prev_events=["$create"])
    if power_levels is not None:
        room.power_levels(power_levels)
    room.join_rule("public")
    return room
