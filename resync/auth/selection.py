"""Which state events authorise an event.

Source: server-server API, "Auth events selection".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.events import Event, StateKey
from federation.room_versions import RoomVersion

CREATE = StateKey("m.room.create", "")
JOIN_RULES = StateKey("m.room.join_rules", "")
POWER_LEVELS = StateKey("m.room.power_levels", "")


def auth_types(
    version: RoomVersion,
    event_type: str,
    sender: str,
    state_key: str | None,
    content: Mapping[str, Any],
) -> set[StateKey]:
    """The state entries that the auth events selection names for an event with these fields.

    In version 12 `m.room.create` is not among them, although the rules read it: see
    `state_needed_for_event`. Malformed content selects nothing that it would have to name.
    """
    if event_type == "m.room.create":
        return set()
    selected = {POWER_LEVELS, StateKey("m.room.member", sender)}
    if not version.room_id_is_create_hash:
        selected.add(CREATE)
    if event_type == "m.room.member":
        if state_key is not None:
            selected.add(StateKey("m.room.member", state_key))
        membership = content.get("membership")
        if membership in ("join", "invite", "knock"):
            selected.add(JOIN_RULES)
        if membership == "invite":
            token = third_party_invite_token(content)
            if token is not None:
                selected.add(StateKey("m.room.third_party_invite", token))
        if membership == "join" and version.restricted_joins:
            authoriser = content.get("join_authorised_via_users_server")
            if type(authoriser) is str:
                selected.add(StateKey("m.room.member", authoriser))
    return selected


def auth_types_for_event(event: Event) -> set[StateKey]:
    """The state entries that the auth events selection names for `event`."""
    return auth_types(event.room_version, event.type, event.sender, event.state_key, event.content)


def state_needed_for_event(event: Event) -> set[StateKey]:
    """The state entries that `check_auth_rules` may look up for `event`.

    The auth events selection and, in every room version, the create event.
    """
    needed = auth_types_for_event(event)
    if event.type != "m.room.create":
        needed.add(CREATE)
    return needed


def select_auth_events(
    version: RoomVersion, pdu: Mapping[str, Any], state: Mapping[StateKey, str]
) -> list[str]:
    """The `auth_events` of an event that is about to be created.

    Args:
        version: the rules of the room.
        pdu: the event so far: `type`, `sender`, `content` and, for state events, `state_key`.
        state: the room state before the event, `(type, state_key)` to event id.

    Returns:
        Event ids, without duplicates, in an order that depends on nothing but their keys.
    """
    selected = auth_types(version, pdu["type"], pdu["sender"], pdu.get("state_key"), pdu["content"])
    event_ids = (state.get(key) for key in sorted(selected))
    return [event_id for event_id in event_ids if event_id is not None]


def third_party_invite_token(content: Mapping[str, Any]) -> str | None:
    """`content.third_party_invite.signed.token`, None if there is no such string."""
    invite = content.get("third_party_invite")
    signed = invite.get("signed") if type(invite) is dict else None
    token = signed.get("token") if type(signed) is dict else None
    return token if type(token) is str else None
