"""How a resident answers `/make_join` and `/send_join`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from federation.events import StateKey
from federation.room_versions import EventFormat
from federation.simulator.answers import Answer, RefusedError
from federation.simulator.built_event import BuiltEvent
from federation.simulator.room import RoomBuilder
from federation.simulator.world import World

_HEROES = 5
"""How many members a client names a nameless room after (client-server API, `m.heroes`)."""


def make_join(
    room: RoomBuilder, server_name: str, user_id: str, versions: Sequence[str], now_ms: int
) -> Answer:
    """The template of a join event. Source: server-server API, "Joining Rooms".

    Raises:
        RefusedError: the room's version is not supported, or the user may not join.
    """
    version = room.version.identifier
    if version not in (versions or ["1"]):
        raise RefusedError(
            400,
            "M_INCOMPATIBLE_ROOM_VERSION",
            "Your homeserver does not support the features required to join this room",
            room_version=version,
        )
    content: dict[str, Any] = {"membership": "join"}
    authoriser = check_may_join(room, server_name, user_id)
    if authoriser is not None:
        content["join_authorised_via_users_server"] = authoriser
    template = room.template("m.room.member", content, user_id, user_id)
    template["origin"] = server_name
    template["origin_server_ts"] = now_ms
    if room.version.event_format is EventFormat.V1:
        # The joining server chooses the id.
        template.pop("event_id", None)
    return Answer.of(room_version=version, event=template)


def check_may_join(room: RoomBuilder, server_name: str, user_id: str) -> str | None:
    """Whether the current state lets `user_id` join.

    The conditions of restricted joins are taken as met.

    Returns:
        The member of `server_name` that authorises a restricted join, where one is needed.

    Raises:
        RefusedError: 403 or 400, the user may not join by way of `server_name`.
    """
    membership = room.membership(user_id)
    if membership == "ban":
        raise RefusedError(403, "M_FORBIDDEN", f"{user_id} is banned from the room")
    rule = (room.content_of(("m.room.join_rules", "")) or {}).get("join_rule", "invite")
    if rule == "public" or membership in ("join", "invite"):
        return None
    restricted = (rule == "restricted" and room.version.restricted_joins) or (
        rule == "knock_restricted" and room.version.knock_restricted_joins
    )
    if not restricted:
        raise RefusedError(403, "M_FORBIDDEN", "You are not invited to this room.")
    authoriser = next(iter(room.joined_members_of(server_name)), None)
    if authoriser is None:
        raise RefusedError(400, "M_UNABLE_TO_GRANT_JOIN", "No member here can authorise the join.")
    return authoriser.state_key


def check_join(pdu: Any, origin: str) -> None:
    """Check that what was sent to `/send_join` is a join of a user of `origin`.

    Raises:
        RefusedError: 400 or 403, it is not.
    """
    content = pdu.get("content") if isinstance(pdu, Mapping) else None
    if not isinstance(content, Mapping) or pdu.get("type") != "m.room.member":
        raise RefusedError(400, "M_INVALID_PARAM", "Not an m.room.member event")
    if content.get("membership") != "join" or pdu.get("sender") != pdu.get("state_key"):
        raise RefusedError(400, "M_INVALID_PARAM", "Not a join")
    if str(pdu.get("sender")).partition(":")[2] != origin:
        raise RefusedError(403, "M_FORBIDDEN", f"{pdu.get('sender')} is not a user of {origin}")


async def send_join(
    world: World,
    room: RoomBuilder,
    server_name: str,
    join: BuiltEvent,
    *,
    omit_members: bool,
) -> Answer:
    """The room for a server that has just joined; `omit_members` for partial state."""
    listing = await asyncio.to_thread(world.list_state, room, join.before)
    events = room.events
    if omit_members:
        state = _partial_state(room, listing.state, join)
        wanted = [*state, join.event_id]
        chain = set(room.auth_chain(wanted)) - set(state)
        auth_chain: Sequence[str] = sorted(chain, key=lambda event_id: events[event_id].depth)
    else:
        state = list(listing.state)
        auth_chain = listing.auth_chain
        known = {*state, *auth_chain}
        auth_chain = [
            *auth_chain,
            *(auth_id for auth_id in room.auth_chain([join.event_id]) if auth_id not in known),
        ]
    servers = await asyncio.to_thread(room.joined_servers, listing.state)
    answer = Answer.of(origin=server_name, members_omitted=omit_members, servers_in_room=servers)
    answer = answer.with_field("event", join.json)
    answer = answer.with_field("state", [events[event_id].json for event_id in state])
    return answer.with_field("auth_chain", [events[event_id].json for event_id in auth_chain])


def _partial_state(room: RoomBuilder, state: Sequence[str], join: BuiltEvent) -> list[str]:
    """The state without members, but with those that name a nameless room, and the joiner's own.

    Source: server-server API, `omit_members` of `/send_join`.
    """
    events = room.events
    kept = [event_id for event_id in state if events[event_id].type != "m.room.member"]
    keys = {events[event_id].key for event_id in kept}
    members: dict[str, None] = {}
    if not keys & {StateKey("m.room.name", ""), StateKey("m.room.canonical_alias", "")}:
        heroes = (
            event_id
            for event_id in state
            if events[event_id].membership in ("join", "invite")
            and events[event_id].state_key != join.state_key
        )
        members.update(dict.fromkeys(itertools.islice(heroes, _HEROES)))
    if join.replaces is not None:
        members[join.replaces] = None
    return [*kept, *members]
