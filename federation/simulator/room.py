"""Rooms as a simulated federation builds them: signed events in a DAG, with the state at each.

`RoomBuilder` is deterministic: the same arguments and calls give the same bytes. It makes events
that are valid by construction and applies no authorisation rules. Its record of the state at each
event is the truth that tests compare with, so three things are left to whoever builds a history:

* an event that the rules refuse is appended with `rejected=True`;
* where forks meet, each entry is taken from the fork that changed it. If both changed it, or if one
  fork uses powers that the other takes away, pass the resolved state as `state_before`;
* `sender` has the power for what it sends (the creator, the default for everything but
  memberships, has).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from federation.errors import InvalidEvent
from federation.events import MAX_PREV_EVENTS, Event, StateKey
from federation.identifiers import domain_of
from federation.room_versions import EventFormat, get_room_version
from federation.signing import required_signers_of
from federation.simulator.built_event import BuiltEvent
from federation.simulator.history import CREATE, JOIN_RULES, POWER_LEVELS, RoomHistory
from federation.simulator.identity import Identities, ServerIdentity
from federation.simulator.sealing import Sealed, reseal, seal
from federation.simulator.states import StateNode

START_TS = 1_700_000_000_000
"""`origin_server_ts` of the first event of a simulated room, in milliseconds."""


class Draft(NamedTuple):
    """An event about to be made: what it stands on and what it may name.

    Attributes:
        before: the state before it.
        prev_event_ids, auth_event_ids, depth: as the PDU will have them.
    """

    before: StateNode
    prev_event_ids: tuple[str, ...]
    auth_event_ids: tuple[str, ...]
    depth: int


class RoomBuilder(RoomHistory):
    """A room and its whole history.

    Attributes:
        room_id, version, creator: what the create event says.
        identities: the servers that may sign events.
        events, forward_extremities: see `RoomHistory`.
    """

    def __init__(
        self,
        room_version: str,
        creator: str,
        identities: Identities,
        *,
        seed: int = 0,
        join_rule: str = "public",
        history_visibility: str = "shared",
        name: str | None = "A simulated room",
        topic: str | None = None,
        power_levels: Mapping[str, Any] | None = None,
        create_content: Mapping[str, Any] | None = None,
        start_ts: int = START_TS,
    ) -> None:
        """Create the room: the creator is in it, and it has its first state events.

        Args:
            room_version: "1" to "12".
            creator: user id of the creator.
            identities: where signing keys come from.
            seed: distinguishes rooms of one creator.
            join_rule, history_visibility: the room's first ones.
            name, topic: None leaves the event out.
            power_levels: entries that differ from `default_power_levels`.
            create_content: more content for the create event (`additional_creators`, …).
            start_ts: `origin_server_ts` of the create event; one second more for each event.
        """
        super().__init__("", get_room_version(room_version))
        self.creator = creator
        self.identities = identities
        self._clock = start_ts
        self._salt = hashlib.sha256(f"{seed}/{creator}/{room_version}".encode()).hexdigest()[:18]
        if not self.version.room_id_is_create_hash:
            self.room_id = f"!{self._salt}:{domain_of(creator)}"
        self._create(create_content or {})
        self.join(creator)
        self.send_state(
            "m.room.power_levels", {**self.default_power_levels(), **(power_levels or {})}
        )
        self.set_join_rules(join_rule)
        self.send_state("m.room.history_visibility", {"history_visibility": history_visibility})
        if name is not None:
            self.set_name(name)
        if topic is not None:
            self.set_topic(topic)

    # -- what is sent ---------------------------------------------------------------------------

    def append(
        self,
        event_type: str,
        content: Mapping[str, Any],
        *,
        sender: str | None = None,
        state_key: str | None = None,
        prev_events: Iterable[str] | None = None,
        auth_events: Iterable[str] | None = None,
        state_before: Mapping[tuple[str, str], str] | None = None,
        rejected: bool = False,
        signers: Iterable[ServerIdentity] | None = None,
        origin_server_ts: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> BuiltEvent:
        """Make one event, sign it and put it into the room.

        Args:
            event_type, content, state_key: of the event; `state_key` None: not a state event.
            sender: a user id; the creator if left out.
            prev_events: ids; the forward extremities if left out. Ids the room does not have are
                allowed if `state_before` is given.
            auth_events: ids; those the specification selects from the state before if left out.
            state_before: the resolved state, where forks meet and conflict.
            rejected: the rules refuse this event; it enters no state and nothing follows it
                unless told to.
            signers: the servers that sign; the ones that must if left out.
            origin_server_ts: milliseconds; one second after the newest event if left out.
            fields: further top-level fields of the PDU, or other values for those above.

        Raises:
            ConflictingForks, UnknownReference: see the arguments.
        """
        sender = sender or self.creator
        draft = self.draft(
            event_type,
            content,
            sender,
            state_key,
            prev_events=prev_events,
            auth_events=auth_events,
            state_before=state_before,
        )
        if origin_server_ts is None:
            origin_server_ts = self._clock
        pdu = self._pdu(draft, event_type, content, sender, state_key, origin_server_ts)
        if fields:
            pdu.update(fields)
        if signers is None:
            signers = self._required_signers(pdu)
        return self._insert(pdu, seal(pdu, self.version, signers), draft, rejected)

    def send_state(
        self, event_type: str, content: Mapping[str, Any], state_key: str = "", **how: Any
    ) -> BuiltEvent:
        """A state event; `how` is as for `append`."""
        return self.append(event_type, content, state_key=state_key, **how)

    def message(self, body: str = "Hello", **how: Any) -> BuiltEvent:
        """An `m.room.message`; `how` is as for `append`."""
        return self.append("m.room.message", {"msgtype": "m.text", "body": body}, **how)

    def set_name(self, name: str, **how: Any) -> BuiltEvent:
        """Rename the room."""
        return self.send_state("m.room.name", {"name": name}, **how)

    def set_topic(self, topic: str, **how: Any) -> BuiltEvent:
        """Give the room another topic."""
        return self.send_state("m.room.topic", {"topic": topic}, **how)

    def set_join_rules(
        self, join_rule: str, allow: Sequence[Mapping[str, Any]] | None = None, **how: Any
    ) -> BuiltEvent:
        """Change who may join; `allow` belongs to the restricted rules."""
        content: dict[str, Any] = {"join_rule": join_rule}
        if allow is not None:
            content["allow"] = [dict(condition) for condition in allow]
        return self.send_state("m.room.join_rules", content, **how)

    def set_power_levels(self, changes: Mapping[str, Any], **how: Any) -> BuiltEvent:
        """Change top-level entries of the power levels; `users` are merged into those there."""
        content = dict(self.content_of(POWER_LEVELS) or self.default_power_levels())
        users = {**content.get("users", {}), **changes.get("users", {})}
        return self.send_state("m.room.power_levels", {**content, **changes, "users": users}, **how)

    def member(
        self, user_id: str, membership: str, *, sender: str | None = None, **how: Any
    ) -> BuiltEvent:
        """An `m.room.member` event; `content` in `how` adds to its content."""
        content = {"membership": membership, **how.pop("content", {})}
        return self.append(
            "m.room.member", content, sender=sender or user_id, state_key=user_id, **how
        )

    def join(self, user_id: str, displayname: str | None = None, **how: Any) -> BuiltEvent:
        """`user_id` joins, or, if it is joined, changes its profile."""
        content = dict(how.pop("content", {}))
        if displayname is not None:
            content["displayname"] = displayname
        return self.member(user_id, "join", content=content, **how)

    def rename(self, user_id: str, displayname: str, **how: Any) -> BuiltEvent:
        """A joined member takes another display name."""
        return self.join(user_id, displayname, **how)

    def leave(self, user_id: str, **how: Any) -> BuiltEvent:
        """`user_id` leaves, or turns an invite down."""
        return self.member(user_id, "leave", **how)

    def knock(self, user_id: str, **how: Any) -> BuiltEvent:
        """`user_id` asks to be let in (version 7 on)."""
        return self.member(user_id, "knock", **how)

    def invite(self, user_id: str, *, sender: str | None = None, **how: Any) -> BuiltEvent:
        """`sender` (the creator if left out) invites `user_id`."""
        return self.member(user_id, "invite", sender=sender or self.creator, **how)

    def kick(self, user_id: str, *, sender: str | None = None, **how: Any) -> BuiltEvent:
        """`sender` (the creator if left out) removes `user_id`, or lifts its ban."""
        return self.member(user_id, "leave", sender=sender or self.creator, **how)

    def ban(self, user_id: str, *, sender: str | None = None, **how: Any) -> BuiltEvent:
        """`sender` (the creator if left out) bans `user_id`."""
        return self.member(user_id, "ban", sender=sender or self.creator, **how)

    def redact(self, event_id: str, **how: Any) -> BuiltEvent:
        """An `m.room.redaction` of `event_id`, in the room version's form."""
        if self.version.redacts_in_content:
            return self.append("m.room.redaction", {"redacts": event_id}, **how)
        fields = {**how.pop("fields", {}), "redacts": event_id}
        return self.append("m.room.redaction", {}, fields=fields, **how)

    def accept(
        self,
        pdu: dict[str, Any],
        *,
        countersigner: ServerIdentity | None = None,
        rejected: bool = False,
        state_before: Mapping[tuple[str, str], str] | None = None,
    ) -> BuiltEvent:
        """Put an event that another server made and signed into the room.

        Nothing but its references is checked. An event that is there already is returned as it is.

        Args:
            countersigner: a server that adds its signature, as restricted joins need it.

        Raises:
            UnknownReference: a `prev_events` entry is unknown and no `state_before` is given.
            InvalidEvent: it has not the form of an event.
        """
        event = Event.from_pdu(pdu, self.version.identifier)
        known = self.events.get(event.event_id)
        if known is not None:
            return known
        if event.room_id != self.room_id:
            raise InvalidEvent(f"{event.event_id} is of {event.room_id}, not of {self.room_id}")
        before = self.node_before(event.prev_event_ids, state_before)
        draft = Draft(before, event.prev_event_ids, event.auth_event_ids, event.depth)
        sealed = reseal(pdu, self.version, countersigner)
        return self._insert(pdu, sealed, draft, rejected)

    def default_power_levels(self) -> dict[str, Any]:
        """The power levels a client would give a new room."""
        users = {} if self.version.creators_outrank_power_levels else {self.creator: 100}
        return {
            "ban": 50,
            "events": {"m.room.power_levels": 100, "m.room.history_visibility": 100},
            "events_default": 0,
            "invite": 0,
            "kick": 50,
            "redact": 50,
            "state_default": 50,
            "users": users,
            "users_default": 0,
        }

    # -- how ------------------------------------------------------------------------------------

    def draft(
        self,
        event_type: str,
        content: Mapping[str, Any],
        sender: str,
        state_key: str | None,
        *,
        prev_events: Iterable[str] | None = None,
        auth_events: Iterable[str] | None = None,
        state_before: Mapping[tuple[str, str], str] | None = None,
    ) -> Draft:
        """What an event sent now would stand on and name. Raises as `append` does."""
        if prev_events is None:
            prev_event_ids = tuple(self.forward_extremities)[-MAX_PREV_EVENTS:]
        else:
            prev_event_ids = tuple(prev_events)
        before = self.node_before(prev_event_ids, state_before)
        if auth_events is None:
            keys = self.auth_types(event_type, content, sender, state_key)
            selected = self.entries(before, keys)
            auth_event_ids = tuple(
                dict.fromkeys(event_id for event_id in selected if event_id is not None)
            )
        else:
            auth_event_ids = tuple(auth_events)
        depths = [
            self.events[event_id].depth for event_id in prev_event_ids if event_id in self.events
        ]
        return Draft(before, prev_event_ids, auth_event_ids, max(depths, default=0) + 1)

    def template(
        self, event_type: str, content: Mapping[str, Any], sender: str, state_key: str | None
    ) -> dict[str, Any]:
        """An event that another server may complete and sign: what `append` would make now."""
        draft = self.draft(event_type, content, sender, state_key)
        return self._pdu(draft, event_type, content, sender, state_key, self._clock)

    def _pdu(
        self,
        draft: Draft,
        event_type: str,
        content: Mapping[str, Any],
        sender: str,
        state_key: str | None,
        origin_server_ts: int,
    ) -> dict[str, Any]:
        pdu: dict[str, Any] = {
            "auth_events": self._references(draft.auth_event_ids),
            "content": dict(content),
            "depth": draft.depth,
            "origin_server_ts": origin_server_ts,
            "prev_events": self._references(draft.prev_event_ids),
            "room_id": self.room_id,
            "sender": sender,
            "type": event_type,
        }
        if state_key is not None:
            pdu["state_key"] = state_key
        if self.version.event_format is EventFormat.V1:
            pdu["event_id"] = self._event_id(sender)
        return pdu

    def auth_types(
        self, event_type: str, content: Mapping[str, Any], sender: str, state_key: str | None
    ) -> list[StateKey]:
        """The state entries an event's `auth_events` come from.

        Source: server-server API, "Auth events selection".
        """
        if event_type == "m.room.create":
            return []
        keys = [POWER_LEVELS, StateKey("m.room.member", sender)]
        if not self.version.room_id_is_create_hash:
            keys.append(CREATE)
        if event_type == "m.room.member" and state_key is not None:
            membership = content.get("membership")
            if state_key != sender:
                keys.append(StateKey("m.room.member", state_key))
            if membership in ("join", "invite", "knock"):
                keys.append(JOIN_RULES)
            if membership == "invite" and "third_party_invite" in content:
                token = content["third_party_invite"]["signed"]["token"]
                keys.append(StateKey("m.room.third_party_invite", token))
            authoriser = content.get("join_authorised_via_users_server")
            if membership == "join" and authoriser and self.version.restricted_joins:
                keys.append(StateKey("m.room.member", authoriser))
        return keys

    def _create(self, content: Mapping[str, Any]) -> None:
        content = {"room_version": self.version.identifier, **content}
        if not self.version.implicit_room_creator:
            content.setdefault("creator", self.creator)
        pdu: dict[str, Any] = {
            "auth_events": [],
            "content": content,
            "depth": 1,
            "origin_server_ts": self._clock,
            "prev_events": [],
            "sender": self.creator,
            "state_key": "",
            "type": "m.room.create",
        }
        if self.version.room_id_is_create_hash:
            # The room id is this event's hash: the salt is what tells two rooms apart.
            content["org.example.simulator.salt"] = self._salt
        else:
            pdu["room_id"] = self.room_id
        if self.version.event_format is EventFormat.V1:
            pdu["event_id"] = self._event_id(self.creator)
        sealed = seal(pdu, self.version, self._required_signers(pdu))
        if self.version.room_id_is_create_hash:
            self.room_id = "!" + sealed.event_id[1:]
        self._insert(pdu, sealed, Draft(StateNode(None, ()), (), (), 1), rejected=False)

    def _insert(
        self, pdu: Mapping[str, Any], sealed: Sealed, draft: Draft, rejected: bool
    ) -> BuiltEvent:
        replaces = None
        state_key = pdu.get("state_key")
        if state_key is not None:
            [replaces] = self.entries(draft.before, [StateKey(pdu["type"], state_key)])
        event = BuiltEvent(
            pdu,
            sealed,
            prev_event_ids=draft.prev_event_ids,
            auth_event_ids=draft.auth_event_ids,
            before=draft.before,
            replaces=replaces,
            rejected=rejected,
        )
        self.insert(event)
        self._clock = max(self._clock, event.origin_server_ts) + 1000
        return event

    def _references(self, event_ids: Sequence[str]) -> list[Any]:
        if self.version.event_format is not EventFormat.V1:
            return list(event_ids)
        return [
            [
                event_id,
                {"sha256": self.events[event_id].reference_hash} if event_id in self.events else {},
            ]
            for event_id in event_ids
        ]

    def _required_signers(self, pdu: Mapping[str, Any]) -> list[ServerIdentity]:
        servers = required_signers_of(pdu, self.version) | {domain_of(pdu["sender"])}
        return [self.identities.of(server_name) for server_name in sorted(servers)]

    def _event_id(self, sender: str) -> str:
        """An event id of versions 1 and 2, chosen by the sender's server."""
        number = f"{self._salt}/{len(self.events)}".encode()
        return f"${hashlib.sha256(number).hexdigest()[:24]}:{domain_of(sender)}"
