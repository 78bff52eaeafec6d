"""What comes back from a resident server, as values of the right shape.

Source: server-server API, "Joining Rooms"; MSC3706 for the partial state fields' old names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from federation.errors import InvalidIdentifier, InvalidResponse
from federation.identifiers import check_event_id, check_server_name
from federation.response_parser import RawPdu, ResponseParser

OLD_SERVERS_IN_ROOM: Final = "org.matrix.msc3706.servers_in_room"
OLD_PARTIAL_STATE: Final = "org.matrix.msc3706.partial_state"


class MakeJoin(NamedTuple):
    """A template for our join event.

    Attributes:
        room_version: one of the versions we know.
        event: the template: a join of the user asked for in the room asked for; the rest of it
            is the resident's word.
    """

    room_version: str
    event: dict[str, Any]


class SendJoin(NamedTuple):
    """The room as the resident server shows it to us at our join.

    Attributes:
        event: our join as the resident signed it too; None where it does not send it back.
        state: the state before the join; without most members if `members_omitted`.
        auth_chain: the auth chain of the join and of `state`, less what `state` has.
        members_omitted: False also when the resident ignored `omit_members`.
        servers_in_room: valid server names, without duplicates.
        dropped: how many entries were unusable, by array name: server names that are malformed
            or past the limit, events nested too deep to parse.
    """

    event: RawPdu | None
    state: list[RawPdu]
    auth_chain: list[RawPdu]
    members_omitted: bool
    servers_in_room: list[str]
    dropped: Mapping[str, int]


class StateIds(NamedTuple):
    """Event ids of the state before an event, and of its auth chain; without duplicates."""

    state: list[str]
    auth_chain: list[str]


def check_template(destination: str, event: Mapping[str, Any], room_id: str, user_id: str) -> None:
    """What we are about to sign must be our user's join to that room and nothing else."""
    content = event.get("content")
    wanted = {
        "type": (event.get("type"), "m.room.member"),
        "room_id": (event.get("room_id"), room_id),
        "sender": (event.get("sender"), user_id),
        "state_key": (event.get("state_key"), user_id),
        "content.membership": (
            content.get("membership") if isinstance(content, dict) else None,
            "join",
        ),
    }
    for name, (found, expected) in wanted.items():
        if found != expected:
            raise InvalidResponse(
                destination, f"its join template is not for our join: {name} is not {expected!r}"
            )


def require_arrays(parser: ResponseParser, *arrays: str) -> None:
    """Check that the answer has had all of these arrays."""
    for name in arrays:
        if name not in parser.keys_seen:
            raise InvalidResponse(parser.destination, f"the answer has no `{name}`")


def members_omitted(parser: ResponseParser) -> bool:
    """Whether the resident says that it left members out, under the new name or the old."""
    for name in ("members_omitted", OLD_PARTIAL_STATE):
        kept = parser.fields.get(name)
        if kept is not None:
            if not isinstance(kept.value, bool):
                raise InvalidResponse(parser.destination, f"`{name}` is not true or false")
            return kept.value
    return False


def servers_in_room(parser: ResponseParser, limit: int) -> tuple[list[str], dict[str, int]]:
    """The first `limit` usable names, and the counts of what was dropped from all arrays."""
    key = "servers_in_room" if "servers_in_room" in parser.strings else OLD_SERVERS_IN_ROOM
    names = list(dict.fromkeys(parser.strings.get(key, ())))
    servers = [name for name in names if _is_server_name(name)][:limit]
    dropped = {name: count for name, count in parser.dropped.items() if count}
    unusable = dropped.pop(key, 0) + len(names) - len(servers)
    if unusable:
        dropped["servers_in_room"] = unusable
    return servers, dropped


def signed_join(parser: ResponseParser) -> RawPdu | None:
    """Our join as the resident sends it back, if it does."""
    kept = parser.fields.get("event")
    if kept is None or kept.value is None:
        return None
    if not isinstance(kept.value, dict):
        raise InvalidResponse(parser.destination, "`event` is not an object")
    return RawPdu(kept.value, kept.json_text)


def event_ids(parser: ResponseParser, key: str) -> list[str]:
    """The event ids in one array, without duplicates; one that is none spoils the answer."""
    found = list(dict.fromkeys(parser.strings[key]))
    try:
        for event_id in found:
            check_event_id(event_id)
    except InvalidIdentifier as error:
        raise InvalidResponse(parser.destination, f"`{key}`: {error}") from None
    if parser.dropped.get(key):
        raise InvalidResponse(parser.destination, f"`{key}` holds something that is no event id")
    return found


def _is_server_name(name: str) -> bool:
    try:
        check_server_name(name)
    except InvalidIdentifier:
        return False
    return True
