"""Random room histories: whatever users do, may do, and try to do, in every room version.

`RandomRoom.propose` invents the next event for a place in the room. It is told the state there
and looks at nothing but that state, so it depends on no implementation of authorization or state
resolution. Most of what it invents is allowed; the rest is tried without permission, cites the
wrong auth events, or (with `malformed`) holds values that no client would send.

Event ids are real, computed from the events; content hashes and signatures of events are not.
"""

from __future__ import annotations

import base64
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from signedjson.key import decode_signing_key_base64
from signedjson.sign import sign_json
from signedjson.types import SigningKey

from federation.events import Event
from federation.room_versions import EventFormat, get_room_version

State = Mapping[tuple[str, str], str]
SERVERS = ("a.example", "b.example", "c.example:8448")
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan")
USERS = tuple(f"@{name}:{SERVERS[number % 3]}" for number, name in enumerate(NAMES))
FOUNDER = USERS[0]
LEVELS = (-1, 0, 1, 10, 25, 49, 50, 51, 75, 99, 100, 101)
NAMED_LEVELS = (
    "ban",
    "events_default",
    "invite",
    "kick",
    "redact",
    "state_default",
    "users_default",
)
EVENT_TYPES = ("m.room.name", "m.room.topic", "m.room.power_levels", "m.room.message", "org.x")
JOIN_RULES = (
    *("public", "public", "public", "invite", "knock", "knock"),
    *("restricted", "restricted", "knock_restricted", "private"),
)
# What a hostile server might put where something else belongs. Values that Synapse is known to
# read otherwise than the specification are left to tests of their own.
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "50",
    " 50 ",
    "+5",
    "0x10",
    "many",
    [],
    [50],
    {},
    {"a": 1},
    2**53 - 1,
    -1,
    "@alice:a.example",
)


class Draft(NamedTuple):
    """An event before it has a place: `redacts` is the top-level key of older redactions."""

    sender: str
    type: str
    state_key: str | None
    content: dict[str, Any]
    redacts: str | None = None


class RandomRoom:
    """One room, growing event by event.

    Args:
        rng: decides everything.
        room_version: "1" to "12".
        malformed: whether contents may have values of the wrong type.
    """

    def __init__(self, rng: random.Random, room_version: str, *, malformed: bool = False) -> None:
        self.events: dict[str, Event] = {}
        self._rng = rng
        self._room_version = room_version
        self._version = get_room_version(room_version)
        self._malformed = malformed
        self._room_id = "!room:a.example"
        self._clock = 1_700_000_000_000
        self._creators: tuple[str, ...] = (FOUNDER,)
        self._tokens: dict[str, SigningKey] = {}
        self._federated = True
        self._opening = self._opening_drafts()
        self._actions: list[tuple[int, Callable[[State], Draft | None]]] = [
            (18, self._join),
            (5, self._rename),
            (7, self._leave),
            (9, self._invite),
            (7, self._kick),
            (8, self._ban),
            (3, self._unban),
            (5, self._knock),
            (4, self._third_party_invite),
            (4, self._third_party_membership),
            (14, self._power_levels),
            (8, self._join_rules),
            (10, self._plain_state),
            (4, self._user_state),
            (2, self._aliases),
            (4, self._redaction),
            (6, self._message),
            (1, self._second_create),
        ]

    def propose(
        self, prev_event_ids: Sequence[str], state: State, *, seen: State | None = None
    ) -> Event:
        """The next event after `prev_event_ids`, where the state before it is `state`.

        Args:
            prev_event_ids: its `prev_events`.
            state: what its sender acts upon.
            seen: the state that its auth events are selected from, where that is another one, as
                a server that is behind the times would do it.
        """
        draft = self._opening.pop(0) if self._opening else self._random_draft(state)
        if self._malformed and len(self.events) > 4 and self._rng.random() < 0.4:
            draft = draft._replace(content=self._spoil(draft.type, draft.content))
        event = self._event(
            draft, prev_event_ids, self._auth_event_ids(draft, state if seen is None else seen)
        )
        if not self.events:
            self._room_id = event.room_id
        self.events[event.event_id] = event
        return event

    # What happens

    def _opening_drafts(self) -> list[Draft]:
        create: dict[str, Any] = {"room_version": self._room_version}
        if not self._version.implicit_room_creator:
            create["creator"] = FOUNDER
        if self._rng.random() < 0.04:
            create["m.federate"] = False
            self._federated = False
        users = {FOUNDER: 100, USERS[1]: self._rng.choice((50, 100))}
        if self._version.creators_outrank_power_levels:
            del users[FOUNDER]
            if self._rng.random() < 0.5:
                create["additional_creators"] = [USERS[2]]
                self._creators = (FOUNDER, USERS[2])
        drafts = [
            Draft(FOUNDER, "m.room.create", "", create),
            Draft(FOUNDER, "m.room.member", FOUNDER, {"membership": "join"}),
        ]
        # Now and then a room without power levels, or without join rules.
        if self._rng.random() < 0.85:
            levels = {"users": users, "users_default": 0, "invite": self._rng.choice((0, 50))}
            drafts.append(Draft(FOUNDER, "m.room.power_levels", "", levels))
        if self._rng.random() < 0.85:
            drafts.append(Draft(FOUNDER, "m.room.join_rules", "", {"join_rule": "public"}))
            drafts.extend(
                Draft(user, "m.room.member", user, {"membership": "join"}) for user in USERS[1:4]
            )
        return drafts

    def _random_draft(self, state: State) -> Draft:
        weights = [weight for weight, _ in self._actions]
        while True:
            ((_, action),) = self._rng.choices(self._actions, weights)
            draft = action(state)
            if draft is not None:
                return draft

    def _join(self, state: State) -> Draft | None:
        content: dict[str, Any] = {"membership": "join"}
        rule = self._content(state, "m.room.join_rules").get("join_rule")
        if rule in ("public", "restricted", "knock_restricted"):
            user = self._user(state, "invite", "leave", "knock", None)
        else:
            user = self._user(state, "invite")
            invited = self._content(state, "m.room.member", user).get("membership") == "invite"
            if not invited and self._rng.random() < 0.8:
                return None
        if rule in ("restricted", "knock_restricted") and self._rng.random() < 0.8:
            content["join_authorised_via_users_server"] = self._user(state, "join")
        return Draft(user, "m.room.member", user, content)

    def _rename(self, state: State) -> Draft | None:
        user = self._user(state, "join")
        name = f"name {self._rng.randrange(100)}"
        return Draft(user, "m.room.member", user, {"membership": "join", "displayname": name})

    def _leave(self, state: State) -> Draft | None:
        user = self._user(state, "join", "invite", "knock")
        return Draft(user, "m.room.member", user, {"membership": "leave"})

    def _invite(self, state: State) -> Draft | None:
        target = self._user(state, "leave", "knock", None)
        return self._membership(state, target, "invite")

    def _kick(self, state: State) -> Draft | None:
        return self._membership(state, self._user(state, "join", "invite", "knock"), "leave")

    def _ban(self, state: State) -> Draft | None:
        return self._membership(state, self._rng.choice(USERS), "ban")

    def _unban(self, state: State) -> Draft | None:
        return self._membership(state, self._user(state, "ban"), "leave")

    def _knock(self, state: State) -> Draft | None:
        rule = self._content(state, "m.room.join_rules").get("join_rule")
        if rule not in ("knock", "knock_restricted") and self._rng.random() < 0.8:
            return None
        user = self._user(state, "leave", None)
        return Draft(user, "m.room.member", user, {"membership": "knock"})

    def _membership(self, state: State, target: str, membership: str) -> Draft:
        if not self._federated and not target.endswith(":" + SERVERS[0]):
            # Synapse minds the target's server here, the specification does not.
            target = FOUNDER
        content = {"membership": membership, "reason": f"reason {self._rng.randrange(100)}"}
        return Draft(self._powerful(state), "m.room.member", target, content)

    def _third_party_invite(self, state: State) -> Draft | None:
        token = f"token{self._rng.randrange(4)}"
        key = decode_signing_key_base64("ed25519", "0", _unpadded(self._rng.randbytes(32)))
        self._tokens[token] = key
        public = _unpadded(key.verify_key.encode())
        content: dict[str, Any] = {"display_name": "someone"}
        if self._rng.random() < 0.5:
            content["public_key"] = public
        else:
            content["public_keys"] = [{"public_key": public}]
        return Draft(self._powerful(state), "m.room.third_party_invite", token, content)

    def _third_party_membership(self, state: State) -> Draft | None:
        if not self._tokens or not self._federated:
            return None
        token = self._rng.choice(sorted(self._tokens))
        target = self._user(state, "leave", None)
        named = target if self._rng.random() < 0.9 else self._rng.choice(USERS)
        signed = sign_json({"mxid": named, "token": token}, "id.example", self._tokens[token])
        invite = self.events.get(state.get(("m.room.third_party_invite", token), ""))
        sender = invite.sender if invite and self._rng.random() < 0.9 else self._powerful(state)
        content = {
            "membership": "invite",
            "third_party_invite": {"display_name": "someone", "signed": signed},
        }
        return Draft(sender, "m.room.member", target, content)

    def _power_levels(self, state: State) -> Draft | None:
        content: dict[str, Any] = copy.deepcopy(dict(self._content(state, "m.room.power_levels")))
        for _ in range(self._rng.randrange(1, 4)):
            level: Any = self._rng.choice(LEVELS)
            if not self._version.integer_power_levels and self._rng.random() < 0.15:
                level = str(level)
            match self._rng.randrange(6):
                case 0 | 1 | 2:
                    user = self._rng.choice(USERS)
                    if user not in self._creators or self._rng.random() < 0.1:
                        content.setdefault("users", {})[user] = level
                case 3:
                    content.get("users", {}).pop(self._rng.choice(USERS), None)
                case 4:
                    kind = self._rng.choice(("events", "events", "notifications"))
                    content.setdefault(kind, {})[self._rng.choice(EVENT_TYPES)] = level
                case _:
                    content[self._rng.choice(NAMED_LEVELS)] = level
        return Draft(self._powerful(state), "m.room.power_levels", "", content)

    def _join_rules(self, state: State) -> Draft | None:
        rules: tuple[str, ...] = JOIN_RULES
        if self._rng.random() < 0.8:
            known = {"public", "invite"}
            known.update({"knock"} if self._version.knocking else ())
            known.update({"restricted"} if self._version.restricted_joins else ())
            known.update({"knock_restricted"} if self._version.knock_restricted_joins else ())
            rules = tuple(rule for rule in JOIN_RULES if rule in known)
        content: dict[str, Any] = {"join_rule": self._rng.choice(rules)}
        if "restricted" in content["join_rule"]:
            content["allow"] = [{"type": "m.room_membership", "room_id": "!other:a.example"}]
        return Draft(self._powerful(state), "m.room.join_rules", "", content)

    def _plain_state(self, state: State) -> Draft | None:
        event_type = self._rng.choice(("m.room.name", "m.room.topic", "org.x"))
        content = {"value": self._rng.randrange(1000)}
        return Draft(self._powerful(state), event_type, self._rng.choice(("", "", "k")), content)

    def _user_state(self, state: State) -> Draft | None:
        owner = self._rng.choice(USERS)
        sender = owner if self._rng.random() < 0.6 else self._powerful(state)
        return Draft(sender, "org.x", owner, {"value": self._rng.randrange(1000)})

    def _aliases(self, state: State) -> Draft | None:
        sender = self._rng.choice(USERS)
        server = sender.split(":", 1)[1] if self._rng.random() < 0.7 else SERVERS[0]
        return Draft(sender, "m.room.aliases", server, {"aliases": [f"#a:{server}"]})

    def _redaction(self, state: State) -> Draft | None:
        target = self._rng.choice(sorted(self.events))
        sender = self._user(state, "join")
        if self._version.redacts_in_content:
            return Draft(sender, "m.room.redaction", None, {"redacts": target})
        return Draft(sender, "m.room.redaction", None, {}, redacts=target)

    def _message(self, state: State) -> Draft | None:
        user = self._user(state, "join")
        return Draft(user, "m.room.message", None, {"body": str(self._rng.randrange(1000))})

    def _second_create(self, state: State) -> Draft | None:
        if self._version.room_id_is_create_hash:
            return None  # It would be another room.
        content = {"creator": FOUNDER, "room_version": self._room_version}
        return Draft(FOUNDER, "m.room.create", "", content)

    # Who does it

    def _content(self, state: State, event_type: str, state_key: str = "") -> Mapping[str, Any]:
        event_id = state.get((event_type, state_key))
        return self.events[event_id].content if event_id is not None else {}

    def _user(self, state: State, *memberships: str | None) -> str:
        """A user with one of the memberships (None: never heard of), as far as there is one."""
        if self._rng.random() < 0.96:
            fitting = [
                user
                for user in USERS
                if self._content(state, "m.room.member", user).get("membership") in memberships
            ]
            if fitting:
                return self._rng.choice(fitting)
        return self._rng.choice(USERS)

    def _powerful(self, state: State) -> str:
        """Mostly a joined user with more power than most."""
        chance = self._rng.random()
        if chance < 0.06:
            return self._rng.choice(USERS)
        if chance < 0.18:
            return self._user(state, "join")
        levels = self._content(state, "m.room.power_levels").get("users")
        candidates = [*(levels if isinstance(levels, dict) else ()), *self._creators]
        joined = [
            str(user)
            for user in candidates
            if user in USERS
            and self._content(state, "m.room.member", user).get("membership") == "join"
        ]
        if not joined:
            return self._user(state, "join")
        # The creators come last and the others are in no order that matters.
        return joined[-1] if chance < 0.5 else self._rng.choice(joined)

    # How it becomes an event

    def _auth_event_ids(self, draft: Draft, state: State) -> list[str]:
        """The auth events a well-behaved server selects; sometimes what another one would."""
        if draft.type == "m.room.create":
            return []
        keys = [("m.room.power_levels", ""), ("m.room.member", draft.sender)]
        if not self._version.room_id_is_create_hash:
            keys.insert(0, ("m.room.create", ""))
        if draft.type == "m.room.member" and draft.state_key is not None:
            keys.extend(self._member_auth_keys(draft.state_key, draft.content))
        chosen = [state[key] for key in dict.fromkeys(keys) if key in state]
        chance = self._rng.random()
        if chance < 0.02 and chosen:
            chosen.pop(self._rng.randrange(len(chosen)))
        elif chance < 0.04:
            chosen.append(self._rng.choice(sorted(self.events)))
        elif chance < 0.12 and chosen:
            # An older event for the same key, as a server behind the times would cite.
            position = self._rng.randrange(len(chosen))
            key = self.events[chosen[position]].key
            older = [e.event_id for e in self.events.values() if e.is_state and e.key == key]
            chosen[position] = self._rng.choice(older)
        return chosen

    def _member_auth_keys(self, target: str, content: Mapping[str, Any]) -> list[tuple[str, str]]:
        keys = [("m.room.member", target)]
        membership = content.get("membership")
        if membership in ("join", "invite", "knock"):
            keys.append(("m.room.join_rules", ""))
        invite = content.get("third_party_invite")
        if membership == "invite" and isinstance(invite, dict):
            signed = invite.get("signed")
            token = signed.get("token") if isinstance(signed, dict) else None
            if isinstance(token, str):
                keys.append(("m.room.third_party_invite", token))
        authoriser = content.get("join_authorised_via_users_server")
        if membership == "join" and self._version.restricted_joins and isinstance(authoriser, str):
            keys.append(("m.room.member", authoriser))
        return keys

    def _event(self, draft: Draft, prev_ids: Sequence[str], auth_ids: Sequence[str]) -> Event:
        number = len(self.events)
        self._clock += self._rng.choice((0, 0, 1, 1, 5, -3))
        server = draft.sender.split(":", 1)[1]
        pdu: dict[str, Any] = {
            "type": draft.type,
            "sender": draft.sender,
            "content": draft.content,
            "origin_server_ts": self._clock,
            "depth": 1 + max((self.events[e].depth for e in prev_ids), default=0),
            "hashes": {"sha256": _unpadded(self._rng.randbytes(32))},
            "signatures": {server: {"ed25519:1": _unpadded(bytes(64))}},
        }
        if draft.state_key is not None:
            pdu["state_key"] = draft.state_key
        if draft.redacts is not None:
            pdu["redacts"] = draft.redacts
        if draft.type != "m.room.create" or not self._version.room_id_is_create_hash:
            pdu["room_id"] = self._room_id
        if self._version.event_format is EventFormat.V1:
            pdu["event_id"] = f"${number}{self._rng.randbytes(4).hex()}:{server}"
            pdu["auth_events"] = [[e, {"sha256": ""}] for e in auth_ids]
            pdu["prev_events"] = [[e, {"sha256": ""}] for e in prev_ids]
        else:
            pdu["auth_events"] = list(auth_ids)
            pdu["prev_events"] = list(prev_ids)
        return Event.from_pdu(pdu, self._room_version)

    def _spoil(self, event_type: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content with one value, perhaps deep inside, replaced by something odd."""
        spoiled: dict[str, Any] = copy.deepcopy(dict(content))
        place = spoiled
        while place:
            key = self._rng.choice(sorted(place))
            inner = place[key]
            if isinstance(inner, dict) and inner and self._rng.random() < 0.7:
                place = inner
                continue
            if self._rng.random() < 0.2:
                del place[key]
            else:
                place[key] = copy.deepcopy(self._rng.choice(ODD_VALUES))
                if event_type == "m.room.power_levels" and place[key] is True:
                    place[key] = None
            break
        return spoiled


def _unpadded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")
