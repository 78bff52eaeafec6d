"""The numbers of the authorisation rules in each room version.

The same rule has different numbers on the pages of different room versions, because versions add
and remove rules. Code names a rule with `Rule`; `rule_number` gives the number under which a
reader finds it. `_outline` is the table of contents of a page's section "Authorisation rules".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from federation.room_versions import ROOM_VERSIONS, RoomVersion


class Rule(Enum):
    """The rules that reject, and the families they belong to."""

    CREATE = auto()
    CREATE_PREV_EVENTS = auto()
    CREATE_ROOM_ID = auto()
    CREATE_ROOM_VERSION = auto()
    CREATE_CREATOR = auto()
    CREATE_ADDITIONAL_CREATORS = auto()

    ROOM_ID = auto()

    AUTH_EVENTS = auto()
    AUTH_EVENTS_DUPLICATE = auto()
    AUTH_EVENTS_SELECTION = auto()
    AUTH_EVENTS_REJECTED = auto()
    AUTH_EVENTS_CREATE = auto()
    AUTH_EVENTS_ROOM = auto()

    FEDERATE = auto()

    ALIASES = auto()
    ALIASES_STATE_KEY = auto()
    ALIASES_DOMAIN = auto()

    MEMBER = auto()
    MEMBER_FORMAT = auto()
    MEMBER_AUTHORISED_VIA = auto()
    JOIN = auto()
    JOIN_CREATOR = auto()
    JOIN_SENDER = auto()
    JOIN_BANNED = auto()
    JOIN_INVITED = auto()
    JOIN_RESTRICTED = auto()
    JOIN_RESTRICTED_MEMBER = auto()
    JOIN_RESTRICTED_AUTHORISER = auto()
    JOIN_PUBLIC = auto()
    JOIN_OTHERWISE = auto()
    INVITE = auto()
    INVITE_THIRD_PARTY = auto()
    INVITE_THIRD_PARTY_BANNED = auto()
    INVITE_THIRD_PARTY_SIGNED = auto()
    INVITE_THIRD_PARTY_PROPERTIES = auto()
    INVITE_THIRD_PARTY_MXID = auto()
    INVITE_THIRD_PARTY_TOKEN = auto()
    INVITE_THIRD_PARTY_SENDER = auto()
    INVITE_THIRD_PARTY_SIGNATURE = auto()
    INVITE_THIRD_PARTY_OTHERWISE = auto()
    INVITE_SENDER = auto()
    INVITE_TARGET = auto()
    INVITE_LEVEL = auto()
    INVITE_OTHERWISE = auto()
    LEAVE = auto()
    LEAVE_OWN = auto()
    LEAVE_SENDER = auto()
    LEAVE_BANNED = auto()
    LEAVE_LEVEL = auto()
    LEAVE_OTHERWISE = auto()
    BAN = auto()
    BAN_SENDER = auto()
    BAN_LEVEL = auto()
    BAN_OTHERWISE = auto()
    KNOCK = auto()
    KNOCK_JOIN_RULE = auto()
    KNOCK_SENDER = auto()
    KNOCK_MEMBERSHIP = auto()
    KNOCK_OTHERWISE = auto()
    MEMBER_UNKNOWN = auto()

    SENDER_JOINED = auto()
    THIRD_PARTY_INVITE = auto()
    THIRD_PARTY_INVITE_LEVEL = auto()
    REQUIRED_LEVEL = auto()
    STATE_KEY = auto()

    POWER_LEVELS = auto()
    POWER_LEVELS_INTEGERS = auto()
    POWER_LEVELS_OBJECTS = auto()
    POWER_LEVELS_USERS = auto()
    POWER_LEVELS_CREATORS = auto()
    POWER_LEVELS_FIRST = auto()
    POWER_LEVELS_PROPERTIES = auto()
    POWER_LEVELS_PROPERTIES_CURRENT = auto()
    POWER_LEVELS_PROPERTIES_NEW = auto()
    POWER_LEVELS_ENTRIES_CURRENT = auto()
    POWER_LEVELS_ENTRIES_NEW = auto()
    POWER_LEVELS_USERS_CURRENT = auto()
    POWER_LEVELS_USERS_NEW = auto()

    REDACTION = auto()
    REDACTION_LEVEL = auto()
    REDACTION_DOMAIN = auto()
    REDACTION_OTHERWISE = auto()


_Entry: TypeAlias = "Rule | tuple[Rule, list[_Entry]]"
"""A rule, or a rule with the rules below it."""


def rule_number(rule: Rule, version: RoomVersion) -> str:
    """The number of `rule` on the page of a room version, such as "5.3.1".

    A rule that the version does not have is a mistake in our code: KeyError.
    """
    return _NUMBERS[version.identifier][rule]


def _outline(version: RoomVersion) -> Iterator[_Entry]:
    """The rules of a room version in the order of its page."""
    yield Rule.CREATE, list(_create_rules(version))
    if version.room_id_is_create_hash:
        yield Rule.ROOM_ID
    yield Rule.AUTH_EVENTS, list(_auth_events_rules(version))
    yield Rule.FEDERATE
    if version.special_cases_aliases:
        yield Rule.ALIASES, [Rule.ALIASES_STATE_KEY, Rule.ALIASES_DOMAIN]
    yield Rule.MEMBER, list(_member_rules(version))
    yield Rule.SENDER_JOINED
    yield Rule.THIRD_PARTY_INVITE, [Rule.THIRD_PARTY_INVITE_LEVEL]
    yield Rule.REQUIRED_LEVEL
    yield Rule.STATE_KEY
    yield Rule.POWER_LEVELS, list(_power_levels_rules(version))
    if version.redaction_auth_by_domain:
        yield (
            Rule.REDACTION,
            [Rule.REDACTION_LEVEL, Rule.REDACTION_DOMAIN, Rule.REDACTION_OTHERWISE],
        )


def _create_rules(version: RoomVersion) -> Iterator[_Entry]:
    yield Rule.CREATE_PREV_EVENTS
    yield Rule.CREATE_ROOM_ID
    yield Rule.CREATE_ROOM_VERSION
    if not version.implicit_room_creator:
        yield Rule.CREATE_CREATOR
    if version.creators_outrank_power_levels:
        yield Rule.CREATE_ADDITIONAL_CREATORS


def _auth_events_rules(version: RoomVersion) -> Iterator[_Entry]:
    yield Rule.AUTH_EVENTS_DUPLICATE
    yield Rule.AUTH_EVENTS_SELECTION
    yield Rule.AUTH_EVENTS_REJECTED
    if not version.room_id_is_create_hash:
        yield Rule.AUTH_EVENTS_CREATE
    yield Rule.AUTH_EVENTS_ROOM


def _member_rules(version: RoomVersion) -> Iterator[_Entry]:
    yield Rule.MEMBER_FORMAT
    if version.restricted_joins:
        yield Rule.MEMBER_AUTHORISED_VIA
    yield Rule.JOIN, list(_join_rules(version))
    yield (
        Rule.INVITE,
        [
            (
                Rule.INVITE_THIRD_PARTY,
                [
                    Rule.INVITE_THIRD_PARTY_BANNED,
                    Rule.INVITE_THIRD_PARTY_SIGNED,
                    Rule.INVITE_THIRD_PARTY_PROPERTIES,
                    Rule.INVITE_THIRD_PARTY_MXID,
                    Rule.INVITE_THIRD_PARTY_TOKEN,
                    Rule.INVITE_THIRD_PARTY_SENDER,
                    Rule.INVITE_THIRD_PARTY_SIGNATURE,
                    Rule.INVITE_THIRD_PARTY_OTHERWISE,
                ],
            ),
            Rule.INVITE_SENDER,
            Rule.INVITE_TARGET,
            Rule.INVITE_LEVEL,
            Rule.INVITE_OTHERWISE,
        ],
    )
    yield (
        Rule.LEAVE,
        [
            Rule.LEAVE_OWN,
            Rule.LEAVE_SENDER,
            Rule.LEAVE_BANNED,
            Rule.LEAVE_LEVEL,
            Rule.LEAVE_OTHERWISE,
        ],
    )
    yield Rule.BAN, [Rule.BAN_SENDER, Rule.BAN_LEVEL, Rule.BAN_OTHERWISE]
    if version.knocking:
        yield (
            Rule.KNOCK,
            [
                Rule.KNOCK_JOIN_RULE,
                Rule.KNOCK_SENDER,
                Rule.KNOCK_MEMBERSHIP,
                Rule.KNOCK_OTHERWISE,
            ],
        )
    yield Rule.MEMBER_UNKNOWN


def _join_rules(version: RoomVersion) -> Iterator[_Entry]:
    yield Rule.JOIN_CREATOR
    yield Rule.JOIN_SENDER
    yield Rule.JOIN_BANNED
    yield Rule.JOIN_INVITED
    if version.restricted_joins:
        yield Rule.JOIN_RESTRICTED, [Rule.JOIN_RESTRICTED_MEMBER, Rule.JOIN_RESTRICTED_AUTHORISER]
    yield Rule.JOIN_PUBLIC
    yield Rule.JOIN_OTHERWISE


def _power_levels_rules(version: RoomVersion) -> Iterator[_Entry]:
    if version.integer_power_levels:
        yield Rule.POWER_LEVELS_INTEGERS
        yield Rule.POWER_LEVELS_OBJECTS
    yield Rule.POWER_LEVELS_USERS
    if version.creators_outrank_power_levels:
        yield Rule.POWER_LEVELS_CREATORS
    yield Rule.POWER_LEVELS_FIRST
    yield (
        Rule.POWER_LEVELS_PROPERTIES,
        [Rule.POWER_LEVELS_PROPERTIES_CURRENT, Rule.POWER_LEVELS_PROPERTIES_NEW],
    )
    yield Rule.POWER_LEVELS_ENTRIES_CURRENT
    yield Rule.POWER_LEVELS_ENTRIES_NEW
    yield Rule.POWER_LEVELS_USERS_CURRENT
    yield Rule.POWER_LEVELS_USERS_NEW


def _numbered(entries: Iterable[_Entry], prefix: str = "") -> Iterator[tuple[Rule, str]]:
    for position, entry in enumerate(entries, start=1):
        number = f"{prefix}{position}"
        if isinstance(entry, Rule):
            yield entry, number
        else:
            rule, below = entry
            yield rule, number
            yield from _numbered(below, f"{number}.")


_NUMBERS = MappingProxyType(
    {
        identifier: MappingProxyType(dict(_numbered(_outline(version))))
        for identifier, version in ROOM_VERSIONS.items()
    }
)
