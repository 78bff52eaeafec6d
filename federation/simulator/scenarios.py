"""Histories that a partially joined server gets wrong until it has the full state.

Both rest on a moderator who was banned, and goes on sending with the auth events from before. A
server that knows the members sees the ban in the state before such an event and rejects it. A
server in partial state does not have the ban, takes the join that the event itself names, and
accepts it.
"""

from __future__ import annotations

from typing import NamedTuple

from federation.events import StateKey
from federation.simulator.built_event import BuiltEvent
from federation.simulator.history import CREATE, POWER_LEVELS
from federation.simulator.room import RoomBuilder


class BannedModerator(NamedTuple):
    """A moderator's join and ban, both to be made before the partial join.

    Attributes:
        user_id: the moderator, with power level 50 in spite of the ban.
        join, ban: its membership events.
    """

    user_id: str
    join: BuiltEvent
    ban: BuiltEvent


class WronglyRejected(NamedTuple):
    """A kick that partial state accepts wrongly, and what it then rejects wrongly.

    Attributes:
        kick: rejected in truth.
        message: of the user who was not kicked after all; accepted in truth.
    """

    kick: BuiltEvent
    message: BuiltEvent


def ban_moderator(room: RoomBuilder, user_id: str) -> BannedModerator:
    """`user_id` joins, is given power level 50, and is banned."""
    join = room.join(user_id)
    room.set_power_levels({"users": {user_id: 50}})
    return BannedModerator(user_id, join, room.ban(user_id))


def accepted_wrongly(
    room: RoomBuilder, moderator: BannedModerator, topic: str = "Mine"
) -> BuiltEvent:
    """The banned moderator sets the topic: partial state accepts it, full state rejects it."""
    return room.set_topic(
        topic,
        sender=moderator.user_id,
        auth_events=_auth_events(room, moderator),
        rejected=True,
    )


def rejected_wrongly(
    room: RoomBuilder, moderator: BannedModerator, user_id: str
) -> WronglyRejected:
    """The banned moderator kicks `user_id`, who is joined and goes on talking.

    Partial state accepts the kick and rejects the message; with full state it is the reverse.
    """
    member = room.state_event(StateKey("m.room.member", user_id))
    if member is None or member.membership != "join":
        raise ValueError(f"{user_id} is not joined")
    kick = room.kick(
        user_id,
        sender=moderator.user_id,
        auth_events=[*_auth_events(room, moderator), member.event_id],
        rejected=True,
    )
    message = room.message("Still here", sender=user_id, prev_events=[kick.event_id])
    return WronglyRejected(kick, message)


def _auth_events(room: RoomBuilder, moderator: BannedModerator) -> list[str]:
    keys = [POWER_LEVELS] if room.version.room_id_is_create_hash else [CREATE, POWER_LEVELS]
    events = (room.state_event(key) for key in keys)
    return [*(event.event_id for event in events if event is not None), moderator.join.event_id]
