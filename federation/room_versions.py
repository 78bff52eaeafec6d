"""The twelve room versions, as data.

One flag per rule that differs, named after the rule; the code that applies the rule asks for the
flag and never for the version. Source: the room version pages 1 to 12 of the Matrix specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from federation.errors import UnknownRoomVersion


class EventFormat(Enum):
    """The shapes a PDU has had."""

    V1 = 1
    """Versions 1 and 2: `event_id` is in the PDU, references are `[event_id, hashes]` pairs."""
    V3 = 3
    """Version 3: the event id is the reference hash in standard Base64; references are ids."""
    V4 = 4
    """Versions 4 to 11: the event id is the reference hash in URL-safe Base64."""
    V12 = 12
    """Version 12 (MSC4291): the room id is the create event's hash; `m.room.create` has no
    `room_id`, and no event names it in `auth_events`."""


class RedactionRules(Enum):
    """The redaction algorithms, named after the room version that introduced them."""

    V1 = 1
    V6 = 6
    V8 = 8
    V9 = 9
    V11 = 11


class StateResolution(Enum):
    """The state resolution algorithms."""

    V1 = "1"
    V2 = "2"
    V2_1 = "2.1"


@dataclass(frozen=True, slots=True)
class RoomVersion:
    """What differs between room versions."""

    identifier: str
    event_format: EventFormat
    redaction_rules: RedactionRules
    state_resolution: StateResolution

    enforces_key_validity: bool
    """v5: a signature counts only if its key was valid at the event's `origin_server_ts`."""
    strict_canonical_json: bool
    """v6: floats and integers outside [-(2**53)+1, (2**53)-1] make an event invalid."""
    special_cases_aliases: bool
    """Up to v5: `m.room.aliases` has auth rules and redaction rules of its own."""
    redaction_auth_by_domain: bool
    """Up to v2: `m.room.redaction` is authorised by power level or by the event id's domain."""
    notification_levels_checked: bool
    """v6: changes to `notifications` in power levels are authorised like the others."""
    integer_power_levels: bool
    """v10: power levels are integers; before, strings that hold an integer are accepted."""
    knocking: bool
    """v7: membership `knock` and join rule `knock`."""
    restricted_joins: bool
    """v8: join rule `restricted` (MSC3083)."""
    knock_restricted_joins: bool
    """v10: join rule `knock_restricted` (MSC3787)."""
    implicit_room_creator: bool
    """v11: the creator is the create event's sender; `content.creator` is not required."""
    redacts_in_content: bool
    """v11: `m.room.redaction` names its target in `content.redacts`."""
    room_id_is_create_hash: bool
    """v12 (MSC4291): the room id is the create event's id with `!` for `$`."""
    creators_outrank_power_levels: bool
    """v12 (MSC4289): creators have infinite power and may not be listed in power levels."""

    def __reduce__(self) -> tuple[Callable[[str], RoomVersion], tuple[str]]:
        # Every event refers to its version: pickled by name, they share one after it, too.
        return get_room_version, (self.identifier,)


def _version(number: int) -> RoomVersion:
    if number <= 2:
        event_format = EventFormat.V1
    elif number == 3:
        event_format = EventFormat.V3
    elif number <= 11:
        event_format = EventFormat.V4
    else:
        event_format = EventFormat.V12
    redaction_rules = max(
        (rules for rules in RedactionRules if rules.value <= number), key=lambda rules: rules.value
    )
    if number == 1:
        state_resolution = StateResolution.V1
    elif number <= 11:
        state_resolution = StateResolution.V2
    else:
        state_resolution = StateResolution.V2_1
    return RoomVersion(
        identifier=str(number),
        event_format=event_format,
        redaction_rules=redaction_rules,
        state_resolution=state_resolution,
        enforces_key_validity=number >= 5,
        strict_canonical_json=number >= 6,
        special_cases_aliases=number <= 5,
        redaction_auth_by_domain=number <= 2,
        notification_levels_checked=number >= 6,
        integer_power_levels=number >= 10,
        knocking=number >= 7,
        restricted_joins=number >= 8,
        knock_restricted_joins=number >= 10,
        implicit_room_creator=number >= 11,
        redacts_in_content=number >= 11,
        room_id_is_create_hash=number >= 12,
        creators_outrank_power_levels=number >= 12,
    )


ROOM_VERSIONS: Mapping[str, RoomVersion] = MappingProxyType(
    {str(number): _version(number) for number in range(1, 13)}
)
"""Every room version this worker knows, by identifier."""


def get_room_version(identifier: str) -> RoomVersion:
    """The room version called `identifier`.

    Raises:
        UnknownRoomVersion: it is not one of ours, or is no string at all.
    """
    version = ROOM_VERSIONS.get(identifier) if isinstance(identifier, str) else None
    if version is None:
        raise UnknownRoomVersion(identifier)
    return version
