"""Random room histories: rooms as hostile and as forked as the protocol allows.

`random_history` plays a room of a few quarrelsome users: forks, merges, bans, kicks, demotions,
join-rule changes, invites, third-party invites, knocks, restricted joins, topics, aliases and
redactions. Events are real PDUs of their room version, with content hashes and real event ids; no
signatures, except on third-party invites, where the authorisation rules look at them. The same
seed gives the same history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from federation.events import Event
from federation.hashing import content_hash
from federation.room_versions import ROOM_VERSIONS, EventFormat, RoomVersion
from federation.signing import SigningKey, encode_base64, sign_json
from resync.auth import NotAuthorised, auth_types_for_event, check_auth_rules, select_auth_events
from resync.state import resolve

ALL_VERSIONS = tuple(ROOM_VERSIONS)
State = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Verdict:
    """One check of an event against a state, and how it ended.

    Attributes:
        event: the event; not every one that was tried is in the history.
        auth_state: the entries of the state that the rules look at, key to event id.
        accepted: the outcome by `check_auth_rules`.
        rule: what rejected it, else "".
    """

    event: Event
    auth_state: State
    accepted: bool
    rule: str


@dataclass
class History:
    """A room and all that happened in it.

    Attributes:
        events: every event, the rejected ones among them, in the order of their making.
        state_after: the room state after each event.
        rejected: events that failed against the state before them.
        merges: the states that met wherever an event has several `prev_events`.
        verdicts: every check made while the history grew.
    """

    room_version: str
    room_id: str = ""
    events: dict[str, Event] = field(default_factory=dict)
    state_after: dict[str, State] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    merges: list[list[State]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def conflicts(self, rng: random.Random, count: int) -> Iterator[list[State]]:
        """Random sets of two to four states of the room, to be resolved."""
        event_ids = list(self.state_after)
        for _ in range(count):
            chosen = rng.sample(event_ids, min(rng.choice((2, 2, 2, 3, 4)), len(event_ids)))
            yield [self.state_after[event_id] for event_id in chosen]


def random_history(room_version: str, seed: int, *, length: int = 60, users: int = 7) -> History:
    """The history of a room with about `length` events and `users` users on three servers."""
    return _Player(room_version, random.Random(seed), users).play(length)


def make_event(
    room_version: str,
    room_id: str,
    sender: str,
    event_type: str,
    content: Mapping[str, Any],
    *,
    state_key: str | None = None,
    prev_events: list[str] | tuple[str, ...] = (),
    auth_events: list[str] | tuple[str, ...] = (),
    depth: int = 1,
    origin_server_ts: int = 0,
    event_id: str | None = None,
    **more: Any,
) -> Event:
    """An event as a PDU of its room version, with its content hash.

    Args:
        room_id: left out of the PDU if it is empty, as version 12 demands of create events.
        event_id: needed in versions 1 and 2; otherwise computed where it is None.
        more: further top-level fields.
    """
    version = ROOM_VERSIONS[room_version]
    pdu: dict[str, Any] = {
        "type": event_type,
        "sender": sender,
        "content": dict(content),
        "depth": depth,
        "origin_server_ts": origin_server_ts,
        "prev_events": _references(version, prev_events),
        "auth_events": _references(version, auth_events),
        **more,
    }
    if room_id:
        pdu["room_id"] = room_id
    if state_key is not None:
        pdu["state_key"] = state_key
    if version.event_format is EventFormat.V1 and event_id is not None:
        pdu["event_id"] = event_id
    pdu["hashes"] = {"sha256": encode_base64(content_hash(pdu))}
    pdu["signatures"] = {}
    return Event.from_pdu(pdu, room_version, event_id=event_id)


def _references(version: RoomVersion, event_ids: list[str] | tuple[str, ...]) -> list[Any]:
    if version.event_format is EventFormat.V1:
        return [[event_id, {}] for event_id in event_ids]
    return list(event_ids)


class _Player:
    """Makes events up, and keeps those that the room takes."""

    def __init__(self, room_version: str, rng: random.Random, users: int) -> None:
        self.version = ROOM_VERSIONS[room_version]
        self.rng = rng
        self.users = [f"@user{i}:server{i % 3}.example" for i in range(users)]
        self.creator = self.users[0]
        self.history = History(room_version)
        self.extremities: list[str] = []
        self.clock = 1_000
        self.invite_key = SigningKey("1", rng.randbytes(32))

    def play(self, length: int) -> History:
        self._create_room()
        attempts = 0
        while len(self.history.events) < length and attempts < 6 * length:
            attempts += 1
            self._step()
        return self.history

    def _create_room(self) -> None:
        version, rng = self.version, self.rng
        content: dict[str, Any] = {"room_version": version.identifier}
        if not version.implicit_room_creator:
            content["creator"] = self.creator
        if version.creators_outrank_power_levels and rng.random() < 0.3:
            content["additional_creators"] = [self.users[1]]
        room_id = "" if version.room_id_is_create_hash else "!room:server0.example"
        create = self._make(self.creator, "m.room.create", content, "", [], {}, room_id=room_id)
        self.history.room_id = create.room_id
        self._take(create, {}, accepted=True)
        self._offer(self.creator, "m.room.member", {"membership": "join"}, self.creator)
        if rng.random() < 0.85:
            privileged = [self.creator, *content.get("additional_creators", ())]
            members = {user: rng.choice((0, 50, 50, 100)) for user in rng.sample(self.users, 3)}
            if version.creators_outrank_power_levels:
                members = {user: v for user, v in members.items() if user not in privileged}
            else:
                members[self.creator] = 100
            self._offer(self.creator, "m.room.power_levels", {"users": members}, "")
        join_rule = rng.choice(("public", "public", "public", "invite"))
        self._offer(self.creator, "m.room.join_rules", {"join_rule": join_rule}, "")

    def _offer(
        self, sender: str, event_type: str, content: dict[str, Any], state_key: str | None
    ) -> None:
        """Append an event to the last one."""
        prev = self.extremities[-1:]
        before = self.history.state_after[prev[0]]
        event = self._make(sender, event_type, content, state_key, prev, before)
        self._take(event, before, accepted=self._is_allowed(event, before))

    def _step(self) -> None:
        rng, history = self.rng, self.history
        prev = self._choose_prev_events()
        states = [history.state_after[event_id] for event_id in prev]
        before = states[0]
        if len(states) > 1:
            history.merges.append(states)
            before = resolve(
                history.room_version, states, history.events, rejected=history.rejected
            )
        # An event whose auth events come from elsewhere in the room's history may be fine by its
        # auth events and wrong by the state, or the reverse.
        known = before
        if rng.random() < 0.12:
            known = history.state_after[rng.choice(list(history.state_after))]
        sender, event_type, content, state_key = self._choose_action(known)
        extra = {}
        if event_type == "m.room.redaction":
            extra["redacts"] = rng.choice(list(history.events))
        event = self._make(sender, event_type, content, state_key, prev, known, **extra)
        if event.event_id in history.events:
            return
        if not self._is_allowed(event, {k: v for k, v in known.items() if v in self._own(event)}):
            return
        accepted = self._is_allowed(event, before)
        if accepted or rng.random() < 0.3:
            self._take(event, before, accepted=accepted)

    def _own(self, event: Event) -> set[str]:
        """The event's auth events and, in version 12 too, the create event."""
        return {*event.auth_event_ids, next(iter(self.history.events))}

    def _choose_prev_events(self) -> list[str]:
        rng = self.rng
        choice = rng.random()
        if choice < 0.25:
            return [rng.choice(list(self.history.events))]
        if choice < 0.5 and len(self.extremities) > 1:
            count = min(len(self.extremities), rng.choice((2, 2, 3, 4)))
            return rng.sample(self.extremities, count)
        return [rng.choice(self.extremities[-3:])]

    def _is_allowed(self, event: Event, state: State) -> bool:
        events, rejected = self.history.events, self.history.rejected
        needed = auth_types_for_event(event) | {("m.room.create", "")}
        auth_state = {
            key: state[key] for key in sorted(needed) if key in state and state[key] not in rejected
        }
        rule = ""
        try:
            check_auth_rules(event, {key: events[i] for key, i in auth_state.items()})
        except NotAuthorised as error:
            rule = error.rule
        self.history.verdicts.append(Verdict(event, auth_state, not rule, rule))
        return not rule

    def _take(self, event: Event, before: State, *, accepted: bool) -> None:
        history = self.history
        history.events[event.event_id] = event
        after = before
        if accepted and event.state_key is not None:
            after = {**before, (event.type, event.state_key): event.event_id}
        if not accepted:
            history.rejected.add(event.event_id)
        history.state_after[event.event_id] = after
        if accepted or not self.extremities:
            gone = set(event.prev_event_ids)
            self.extremities = [i for i in self.extremities if i not in gone][-5:]
            self.extremities.append(event.event_id)

    def _make(
        self,
        sender: str,
        event_type: str,
        content: dict[str, Any],
        state_key: str | None,
        prev: list[str],
        state: Mapping[Any, str],
        room_id: str | None = None,
        **extra: Any,
    ) -> Event:
        rng, history = self.rng, self.history
        # Small steps and equal timestamps: ties are where implementations differ.
        self.clock += rng.choice((0, 0, 1, 2))
        fields = {"type": event_type, "sender": sender, "content": content, "state_key": state_key}
        auth_events = select_auth_events(self.version, fields, state)
        event_id = None
        if self.version.event_format is EventFormat.V1:
            number = len(history.events) * 1000 + rng.randrange(1000)
            event_id = f"${number}:{sender.partition(':')[2]}"
        return make_event(
            self.version.identifier,
            history.room_id if room_id is None else room_id,
            sender,
            event_type,
            content,
            state_key=state_key,
            prev_events=prev,
            auth_events=auth_events,
            depth=1 + max((history.events[i].depth for i in prev), default=0),
            origin_server_ts=self.clock - rng.choice((0, 0, 0, 1, 2, 5)),
            event_id=event_id,
            **extra,
        )

    def _choose_action(self, state: State) -> tuple[str, str, dict[str, Any], str | None]:
        """(sender, type, content, state_key) of something a user might do, allowed or not."""
        rng = self.rng
        sender = rng.choice(self._members(state, "join") or self.users)
        other = rng.choice(self.users)
        action = rng.choice(self._ACTIONS)
        match action:
            case "join":
                outsiders = [
                    user for user in self.users if user not in self._members(state, "join")
                ]
                joining = rng.choice(outsiders or self.users)
                return joining, "m.room.member", self._join_content(state), joining
            case "profile":
                content = {"membership": "join", "displayname": f"n{rng.randrange(99)}"}
                return sender, "m.room.member", content, sender
            case "leave":
                return sender, "m.room.member", {"membership": "leave"}, sender
            case "decline":
                invited = rng.choice(self._members(state, "invite") or [sender])
                return invited, "m.room.member", {"membership": "leave"}, invited
            case "knock":
                return other, "m.room.member", {"membership": "knock"}, other
            case "invite" | "ban" | "kick":
                membership = "leave" if action == "kick" else action
                return sender, "m.room.member", {"membership": membership}, other
            case "unban":
                banned = rng.choice(self._members(state, "ban") or [other])
                return sender, "m.room.member", {"membership": "leave"}, banned
            case "power_levels":
                return sender, "m.room.power_levels", self._power_levels(sender, state), ""
            case "join_rules":
                return sender, "m.room.join_rules", {"join_rule": self._join_rule()}, ""
            case "third_party_invite":
                public_key = self.invite_key.verify_key_base64
                content = {"display_name": "x", "public_key": public_key}
                return sender, "m.room.third_party_invite", content, f"token{rng.randrange(3)}"
            case "redeem":
                return sender, "m.room.member", self._redemption(other), other
            case "aliases":
                server = rng.choice((sender, other)).partition(":")[2]
                return sender, "m.room.aliases", {"aliases": []}, server
            case "own_state":
                return (
                    sender,
                    "com.example.own",
                    {"n": rng.randrange(9)},
                    rng.choice((sender, other)),
                )
            case "redaction":
                return sender, "m.room.redaction", {}, None
            case "message":
                return sender, "m.room.message", {"body": str(rng.randrange(99))}, None
            case _:
                event_type = rng.choice(("m.room.topic", "m.room.name"))
                return sender, event_type, {"value": rng.randrange(99)}, ""

    _ACTIONS = (
        *("join",) * 8,
        *("profile",) * 2,
        *("leave", "decline", "invite", "kick", "unban", "knock", "knock"),
        *("ban",) * 3,
        *("power_levels",) * 5,
        *("join_rules",) * 4,
        *("third_party_invite", "redeem", "aliases", "own_state", "redaction", "message"),
        *("topic",) * 3,
    )

    def _members(self, state: State, membership: str) -> list[str]:
        events = self.history.events
        return [
            key[1]
            for key, event_id in state.items()
            if key[0] == "m.room.member"
            and events[event_id].content.get("membership") == membership
        ]

    def _join_rule(self) -> str:
        rules = ["public", "public", "invite", "private"]
        if self.version.knocking:
            rules.append("knock")
        if self.version.restricted_joins:
            rules += ["restricted", "restricted"]
        if self.version.knock_restricted_joins:
            rules.append("knock_restricted")
        return self.rng.choice(rules)

    def _join_content(self, state: State) -> dict[str, Any]:
        content: dict[str, Any] = {"membership": "join"}
        if self.version.restricted_joins and self.rng.random() < 0.5:
            joined = self._members(state, "join") or self.users
            content["join_authorised_via_users_server"] = self.rng.choice(joined)
        return content

    def _power_levels(self, sender: str, state: State) -> dict[str, Any]:
        """The power levels in force with one or two changes."""
        rng = self.rng
        current = state.get(("m.room.power_levels", ""))
        content: dict[str, Any] = {"users": {}}
        if current is not None:
            content.update(self.history.events[current].content)
        levels = [0, 10, 50, 50, 75, 100]
        for _ in range(rng.choice((1, 1, 2))):
            level: Any = rng.choice(levels)
            if not self.version.integer_power_levels and rng.random() < 0.2:
                level = f" +0{level} "
            match rng.choice(("users", "users", "users", "own", "events", "named", "notify")):
                case "users":
                    content["users"] = {**content["users"], rng.choice(self.users): level}
                case "own":
                    content["users"] = {**content["users"], sender: level}
                case "events":
                    event_type = rng.choice(("m.room.topic", "m.room.name", "m.room.power_levels"))
                    content["events"] = {**content.get("events", {}), event_type: level}
                case "named":
                    names = ("ban", "kick", "invite", "redact", "state_default", "users_default")
                    content[rng.choice(names)] = level
                case _:
                    content["notifications"] = {"room": level}
        return content

    def _redemption(self, target: str) -> dict[str, Any]:
        signed = {"mxid": target, "token": f"token{self.rng.randrange(3)}"}
        key = self.invite_key if self.rng.random() < 0.8 else SigningKey("1", bytes(32))
        signed = sign_json(signed, "identity.example", key)
        return {
            "membership": "invite",
            "third_party_invite": {"display_name": "x", "signed": signed},
        }
