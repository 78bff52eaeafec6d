"""A room in memory, for tests of the authorisation rules."""

from __future__ import annotations

from typing import Any

from federation.events import Event, StateKey
from federation.room_versions import ROOM_VERSIONS, EventFormat
from resync.auth import NotAuthorised, check_auth_rules

CREATOR = "@creator:a.example"
ALICE = "@alice:a.example"
BOB = "@bob:b.example"
CAROL = "@carol:c.example"
NUMBERS = tuple(range(1, 13))


def versions(first: int, last: int = 12) -> list[str]:
    """The room versions from `first` to `last`."""
    return [str(number) for number in NUMBERS if first <= number <= last]


class Room:
    """The state of a room, built entry by entry; nothing in it is checked.

    It starts with its create event and the creator as its member: no power levels, no join rules.
    """

    def __init__(self, room_version: str, create_content: dict[str, Any] | None = None) -> None:
        self.version = ROOM_VERSIONS[room_version]
        self.state: dict[StateKey, Event] = {}
        self.made = 0
        content: dict[str, Any] = {"room_version": room_version}
        if not self.version.implicit_room_creator:
            content["creator"] = CREATOR
        content.update(create_content or {})
        self.room_id = "" if self.version.room_id_is_create_hash else "!room:a.example"
        self.create = self.put(self.event(CREATOR, "m.room.create", content, ""))
        self.room_id = self.create.room_id
        self.member(CREATOR, "join")

    def event(
        self,
        sender: str,
        event_type: str,
        content: dict[str, Any] | None = None,
        state_key: str | None = None,
        *,
        prev_events: tuple[str, ...] = (),
        auth_events: tuple[str, ...] = (),
        **more: Any,
    ) -> Event:
        """An event of this room that is not in its state.

        Event ids are made up in every room version: the rules ask for no hash, except for the room
        id of version 12, which follows from the create event's id.
        """
        self.made += 1
        pairs = self.version.event_format is EventFormat.V1
        pdu = {
            "type": event_type,
            "sender": sender,
            "content": content or {},
            "depth": self.made,
            "prev_events": [[i, {}] if pairs else i for i in prev_events],
            "auth_events": [[i, {}] if pairs else i for i in auth_events],
            **more,
        }
        if self.room_id:
            pdu.setdefault("room_id", self.room_id)
        if pdu.get("room_id") == "":
            del pdu["room_id"]
        if state_key is not None:
            pdu["state_key"] = state_key
        event_id = f"${self.made}:{sender.partition(':')[2]}"
        return Event.from_pdu(pdu, self.version.identifier, event_id=event_id)

    def put(self, event: Event) -> Event:
        """Set the state entry of an event."""
        self.state[event.key] = event
        return event

    def member(self, user: str, membership: str, sender: str | None = None) -> Event:
        """Set a user's membership."""
        content = {"membership": membership}
        return self.put(self.event(sender or user, "m.room.member", content, user))

    def join_rule(self, join_rule: Any) -> Event:
        """Set the join rule."""
        return self.put(self.event(CREATOR, "m.room.join_rules", {"join_rule": join_rule}, ""))

    def power_levels(self, users: dict[str, Any] | None = None, **content: Any) -> Event:
        """Set the power levels. Before version 12 the creator has 100 where `users` is silent."""
        users = dict(users or {})
        if not self.version.creators_outrank_power_levels:
            users.setdefault(CREATOR, 100)
        content = {"users": users, **content}
        return self.put(self.event(CREATOR, "m.room.power_levels", content, ""))

    def verdict(self, event: Event) -> str:
        """The number of the rule that rejects an event, "" if it is allowed."""
        try:
            check_auth_rules(event, self.state)
        except NotAuthorised as error:
            return error.rule
        return ""

    def verdict_on(
        self, sender: str, event_type: str, content: dict[str, Any], state_key: str | None = None
    ) -> str:
        """The verdict on a new event."""
        return self.verdict(self.event(sender, event_type, content, state_key))

    def verdict_on_member(self, sender: str, target: str, membership: Any, **content: Any) -> str:
        """The verdict on a membership change."""
        content = {"membership": membership, **content}
        return self.verdict_on(sender, "m.room.member", content, target)


def member_rule(room_version: str, number: str) -> str:
    """The number of a rule on membership, given as in version 12 without the leading "5.".

    Room version pages: `m.room.member` is rule 5 in versions 1 to 5 and 12 and rule 4 between.
    Version 8 puts a rule on `join_authorised_via_users_server` second, and moves all after it;
    versions before it know no restricted joins (join rule 5) either, and those before version 7
    no knocking (rule 7).
    """
    version = int(room_version)
    first = "4" if 6 <= version <= 11 else "5"
    parts = [int(part) for part in number.split(".")]
    if version < 8:
        if parts[0] == 3 and len(parts) > 1 and parts[1] > 5:
            parts[1] -= 1
        if version < 7 and parts[0] == 8:
            parts[0] -= 1
        parts[0] -= 1
    return ".".join([first, *map(str, parts)])


def later_rule(room_version: str, number: int) -> str:
    """The number of a rule after that on membership, which is 5, given as in version 12.

    They move up by one where rule 4 on `m.room.aliases` went in version 6, and down again in
    version 12, which added a rule on the room id.
    """
    return str(number - 1 if 6 <= int(room_version) <= 11 else number)
