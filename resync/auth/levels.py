"""Power levels: what a user has, and what an action requires.

Source: server-server API, "Definitions" (required power level, invite, kick, ban and redact
level), `m.room.power_levels` in the client-server API for the defaults, and the room version pages
for how a level may be written.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from federation.events import Event
from federation.room_versions import RoomVersion

PowerLevel: TypeAlias = int | float
"""An integer, or `INFINITE`."""

INFINITE = math.inf
"""The level of a room's creators from version 12 on (MSC4289)."""

DEFAULTS = {
    "users_default": 0,
    "events_default": 0,
    "state_default": 50,
    "ban": 50,
    "redact": 50,
    "kick": 50,
    "invite": 0,
}
"""What each property means when power levels do not have it, or the room has no power levels."""


class MalformedPowerLevel(ValueError):
    """A power level that is not written as its room version demands."""


def parse_level(value: Any, version: RoomVersion) -> int:
    """The integer that a power level is written as.

    From version 10 on only integers. Before that, strings that hold one base 10 integer with an
    optional sign and whitespace around it; and, before canonical JSON was enforced in version 6,
    floats, which are cut off at the decimal point.

    Raises:
        MalformedPowerLevel: it is written otherwise.
    """
    if type(value) is int:
        return value
    if not version.integer_power_levels:
        if type(value) is str:
            text = value.strip()
            digits = text[1:] if text[:1] in ("+", "-") else text
            # int() would take underscores and the digits of other scripts as well.
            if digits.isascii() and digits.isdigit() and len(digits) <= 400:
                return int(text)
        elif type(value) is float and not version.strict_canonical_json and math.isfinite(value):
            return int(value)
    raise MalformedPowerLevel(f"power level {_shown(value)} is not an integer")


def creator_of(create: Event) -> Any:
    """The user who made the room; before version 11 whatever `content.creator` holds."""
    if create.room_version.implicit_room_creator:
        return create.sender
    return create.content.get("creator")


def is_privileged_creator(user_id: str, create: Event) -> bool:
    """Whether a user has infinite power: version 12, "room creators"."""
    if not create.room_version.creators_outrank_power_levels:
        return False
    if user_id == create.sender:
        return True
    additional = create.content.get("additional_creators")
    return type(additional) is list and user_id in additional


def user_level(user_id: str, create: Event, power_levels: Event | None) -> PowerLevel:
    """The power level of a user.

    Args:
        user_id: the user.
        create: the room's create event.
        power_levels: the power levels in force, None if the room has none.

    Raises:
        MalformedPowerLevel: the level in force cannot be read.
    """
    if is_privileged_creator(user_id, create):
        return INFINITE
    if power_levels is None:
        return 100 if user_id == creator_of(create) else 0
    content = power_levels.content
    users = content.get("users")
    level = users.get(user_id) if type(users) is dict else None
    if level is None:
        level = content.get("users_default")
        if level is None:
            return 0
    return level if type(level) is int else parse_level(level, power_levels.room_version)


def named_level(name: str, power_levels: Event | None) -> int:
    """The level that a property of `DEFAULTS` requires, such as "invite" or "ban".

    Raises:
        MalformedPowerLevel: the level in force cannot be read.
    """
    level = None if power_levels is None else power_levels.content.get(name)
    if power_levels is None or level is None:
        return DEFAULTS[name]
    return level if type(level) is int else parse_level(level, power_levels.room_version)


def required_level(event_type: str, is_state: bool, power_levels: Event | None) -> int:
    """The required power level of an event type.

    Raises:
        MalformedPowerLevel: the level in force cannot be read.
    """
    default = "state_default" if is_state else "events_default"
    if power_levels is None:
        return DEFAULTS[default]
    events = power_levels.content.get("events")
    if events is None:
        return named_level(default, power_levels)
    if type(events) is not dict:
        raise MalformedPowerLevel("events in the power levels is not an object")
    level = events.get(event_type)
    if level is None:
        return named_level(default, power_levels)
    return level if type(level) is int else parse_level(level, power_levels.room_version)


def _shown(value: Any) -> str:
    return ascii(value)[:60] if isinstance(value, str | int | float) else type(value).__name__
