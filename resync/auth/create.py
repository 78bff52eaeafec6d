"""Rule 1: `m.room.create`."""

from __future__ import annotations

from typing import Any

from federation.events import Event
from federation.identifiers import MAX_IDENTIFIER_BYTES
from federation.room_versions import ROOM_VERSIONS
from resync.auth.errors import rejected_by
from resync.auth.rule_numbers import Rule


def check_create(event: Event) -> None:
    """Rule 1, which depends on nothing but the event.

    Raises:
        NotAuthorised: a part of rule 1 rejects it.
    """
    version = event.room_version

    # 1.1 If it has any prev_events, reject.
    if event.prev_event_ids:
        raise rejected_by(
            Rule.CREATE_PREV_EVENTS, version, "a create event must not have prev_events"
        )

    # 1.2 If the domain of the room_id does not match the domain of the sender, reject.
    #     Version 12: if the event has a room_id, reject.
    if version.room_id_is_create_hash:
        if "room_id" in event.pdu:
            raise rejected_by(
                Rule.CREATE_ROOM_ID, version, "a create event must not have a room_id"
            )
    elif domain(event.room_id) is None or domain(event.room_id) != domain(event.sender):
        raise rejected_by(
            Rule.CREATE_ROOM_ID, version, "the room id and the sender are of different servers"
        )

    # 1.3 If content.room_version is present and is not a recognised version, reject.
    room_version = event.content.get("room_version", "1")
    if type(room_version) is not str or room_version not in ROOM_VERSIONS:
        raise rejected_by(
            Rule.CREATE_ROOM_VERSION, version, "the create event names an unknown room version"
        )

    # 1.4 (versions 1 to 10) If content has no creator property, reject.
    if not version.implicit_room_creator and "creator" not in event.content:
        raise rejected_by(Rule.CREATE_CREATOR, version, "the create event names no creator")

    # 1.4 (version 12) If additional_creators is present and is not an array of user ids, reject.
    if version.creators_outrank_power_levels and "additional_creators" in event.content:
        additional = event.content["additional_creators"]
        if type(additional) is not list or not all(map(_is_bounded_user_id, additional)):
            raise rejected_by(
                Rule.CREATE_ADDITIONAL_CREATORS,
                version,
                "additional_creators is not a list of user ids",
            )


def domain(identifier: str) -> str | None:
    """What follows the first colon of an identifier, None if it has no colon."""
    _, colon, server_name = identifier.partition(":")
    return server_name if colon else None


def is_user_id(value: Any) -> bool:
    """Whether the authorisation rules take `value` for a user id.

    A `@` and a colon are all they ask for: the grammar of user ids has grown stricter over the
    years, and a server that held old power levels to it would split the room.
    """
    return type(value) is str and value.startswith("@") and ":" in value


def _is_bounded_user_id(value: Any) -> bool:
    return is_user_id(value) and len(value.encode("utf-8", "surrogatepass")) <= MAX_IDENTIFIER_BYTES
