"""The rules for `m.room.power_levels`: rule 10 in versions 1 to 5 and 12, 9 in versions 6 to 11.

The comments number the parts as version 12 does; `rule_numbers` has the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.events import Event
from resync.auth.auth_state import POWER_LEVELS_KEY, AuthState
from resync.auth.create import is_user_id
from resync.auth.errors import rejected_by
from resync.auth.levels import (
    DEFAULTS,
    MalformedPowerLevel,
    PowerLevel,
    is_privileged_creator,
    parse_level,
    user_level,
)
from resync.auth.rule_numbers import Rule


def check_power_levels(event: Event, create: Event, auth_state: AuthState) -> None:
    """Rule 10.

    Raises:
        NotAuthorised: a part of rule 10 rejects it.
        MalformedPowerLevel: a power level that decides cannot be read.
    """
    _check_content(event, create)
    # 10.5 If there is no previous m.room.power_levels event in the room, allow.
    previous = auth_state.get(POWER_LEVELS_KEY)
    if previous is not None:
        _check_changes(event, previous, user_level(event.sender, create, previous))


def _check_content(event: Event, create: Event) -> None:
    """Rules 10.1 to 10.4, which look at nothing but the new content and the creators."""
    version = event.room_version
    content = event.content
    if version.integer_power_levels:
        # 10.1 If any of the properties users_default, events_default, state_default, ban, redact,
        #      kick, or invite in content are present and not an integer, reject.
        for name in DEFAULTS:
            if name in content and type(content[name]) is not int:
                raise rejected_by(Rule.POWER_LEVELS_INTEGERS, version, f"{name} is not an integer")
        # 10.2 If either of the properties events or notifications in content are present and not
        #      an object with values that are integers, reject.
        for name in ("events", "notifications"):
            entries = content.get(name, {})
            if type(entries) is not dict or any(type(v) is not int for v in entries.values()):
                raise rejected_by(
                    Rule.POWER_LEVELS_OBJECTS, version, f"{name} is not an object of integers"
                )
    # 10.3 If the users property in content is not an object with keys that are valid user IDs with
    #      values that are integers (before version 10: or a string that is an integer), reject.
    users = content.get("users", {})
    if type(users) is not dict:
        raise rejected_by(Rule.POWER_LEVELS_USERS, version, "users is not an object")
    for user_id, level in users.items():
        if not is_user_id(user_id):
            raise rejected_by(
                Rule.POWER_LEVELS_USERS, version, f"{user_id[:100]!a} in users is not a user id"
            )
        if type(level) is not int:
            try:
                parse_level(level, version)
            except MalformedPowerLevel as error:
                raise rejected_by(Rule.POWER_LEVELS_USERS, version, f"users: {error}") from None
    # 10.4 (version 12) If the users property in content contains the sender of the m.room.create
    #      event or any of the additional_creators, reject.
    if version.creators_outrank_power_levels:
        for user_id in users:
            if is_privileged_creator(user_id, create):
                raise rejected_by(
                    Rule.POWER_LEVELS_CREATORS, version, f"{user_id} is a creator of the room"
                )


def _check_changes(event: Event, previous: Event, sender_level: PowerLevel) -> None:
    """Rules 10.6 to 10.10: what may be changed, by a sender with `sender_level`."""
    version = event.room_version
    old, new = previous.content, event.content
    # 10.6 For the properties users_default, events_default, state_default, ban, redact, kick,
    #      invite check if they were added, changed or removed. For each found alteration: ...
    for name in DEFAULTS:
        current_level, new_level = _levels(event, old, new, name)
        if current_level == new_level:
            continue
        # 10.6.1 If the current value is higher than the sender's current power level, reject.
        if current_level is not None and current_level > sender_level:
            raise rejected_by(
                Rule.POWER_LEVELS_PROPERTIES_CURRENT, version, f"{name} is out of reach"
            )
        # 10.6.2 If the new value is higher than the sender's current power level, reject.
        if new_level is not None and new_level > sender_level:
            raise rejected_by(
                Rule.POWER_LEVELS_PROPERTIES_NEW, version, f"{name} would be out of reach"
            )
    # 10.7, 10.8: the entries of events and, from version 6 on, of notifications.
    for name in ("events", "notifications") if version.notification_levels_checked else ("events",):
        old_entries, new_entries = _entries(old, name), _entries(new, name)
        if old_entries == new_entries:
            continue
        for key in {**old_entries, **new_entries}:
            current_level, new_level = _levels(event, old_entries, new_entries, key)
            if current_level == new_level:
                continue
            # 10.7.1 If the current value is greater than the sender's current power level, reject.
            if current_level is not None and current_level > sender_level:
                raise rejected_by(
                    Rule.POWER_LEVELS_ENTRIES_CURRENT, version, f"a level in {name} is out of reach"
                )
            # 10.8.1 If the new value is greater than the sender's current power level, reject.
            if new_level is not None and new_level > sender_level:
                raise rejected_by(
                    Rule.POWER_LEVELS_ENTRIES_NEW, version, f"a level in {name} is out of reach"
                )
    _check_user_changes(event, previous, sender_level)


def _check_user_changes(event: Event, previous: Event, sender_level: PowerLevel) -> None:
    """Rules 10.9 and 10.10: the entries of users."""
    version = event.room_version
    old_users, new_users = _entries(previous.content, "users"), _entries(event.content, "users")
    if old_users == new_users:
        return
    for user_id in {**old_users, **new_users}:
        current_level, new_level = _levels(event, old_users, new_users, user_id)
        if current_level == new_level:
            continue
        # 10.9 For each entry being changed in, or removed from, the users property, other than the
        #      sender's own entry: if the current value is greater than or equal to the sender's
        #      current power level, reject.
        if user_id != event.sender and current_level is not None and current_level >= sender_level:
            raise rejected_by(
                Rule.POWER_LEVELS_USERS_CURRENT, version, f"{user_id} is not below the sender"
            )
        # 10.10 For each entry being added to, or changed in, the users property: if the new value
        #       is greater than the sender's current power level, reject.
        if new_level is not None and new_level > sender_level:
            raise rejected_by(
                Rule.POWER_LEVELS_USERS_NEW, version, f"{user_id} would be above the sender"
            )


def _entries(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entries = content.get(name, {})
    if type(entries) is not dict:
        raise MalformedPowerLevel(f"{name} in the power levels is not an object")
    return entries


def _levels(
    event: Event, old: Mapping[str, Any], new: Mapping[str, Any], name: str
) -> tuple[int | None, int | None]:
    """The current and the new level under `name`, None where there is none."""
    return (
        parse_level(old[name], event.room_version) if name in old else None,
        parse_level(new[name], event.room_version) if name in new else None,
    )
