"""Rooms with a history, built on a real Synapse through its client-server API."""

from __future__ import annotations

from collections.abc import Sequence

from tests.interop.synapse_server import SynapseServer, User

MEMBERS = 30


def register_members(synapse: SynapseServer, count: int = MEMBERS) -> list[User]:
    """Users for `build_busy_room`; one set serves any number of rooms."""
    return [synapse.register(f"member{number:02}") for number in range(count)]


def build_busy_room(creator: User, members: Sequence[User], room_version: str) -> str:
    """A public room in which every kind of membership change has happened.

    Besides the creator, each of the (at least 30) members ends as one of: joined, joined after a
    rename, left, kicked, banned, banned while invited, unbanned, invited, rejected an invite,
    knocked, knocked and let in, back after having left. Name, topic, join rules, power levels
    and other state change in between, with messages before and after each.

    Returns the room id.
    """
    if len(members) < MEMBERS:
        raise ValueError(f"{MEMBERS} members are needed")
    room = creator.create_room(room_version, name="first name", topic="first topic")
    joined, rest = members[:16], members[16:]
    moderator = joined[0]

    for member in joined:
        member.join(room)
        member.send_message(room, f"{member.user_id} says hello")
    creator.change_power(room, users={moderator.user_id: 50}, events={"m.room.topic": 25})
    creator.send_state(room, "m.room.name", {"name": "second name"})
    moderator.send_state(room, "m.room.topic", {"topic": "second topic"})

    for member in joined[1:5]:
        member.rename(room, f"{member.user_id} renamed")
        member.send_message(room, "call me differently")
    joined[1].rename(room, "renamed again")
    joined[5].leave(room)
    joined[6].leave(room)
    creator.send_message(room, "some have left")
    joined[6].join(room)
    moderator.kick(room, joined[7].user_id)
    moderator.ban(room, joined[8].user_id)
    creator.ban(room, joined[9].user_id)
    creator.unban(room, joined[9].user_id)

    creator.send_state(room, "m.room.join_rules", {"join_rule": "invite"})
    moderator.send_message(room, "by invitation only")
    invited, rejecting, accepting, banned = rest[0:3], rest[3:5], rest[5:8], rest[8]
    for member in (*invited, *rejecting, *accepting, banned):
        moderator.invite(room, member.user_id)
    for member in rejecting:
        member.leave(room)
    for member in accepting:
        member.join(room)
        member.send_message(room, "thank you for the invitation")
    moderator.ban(room, banned.user_id)

    creator.send_state(room, "m.room.join_rules", {"join_rule": "knock"})
    knocking = rest[9:12]
    for member in knocking:
        member.knock(room)
    moderator.invite(room, knocking[0].user_id)
    knocking[0].join(room)
    creator.kick(room, knocking[1].user_id)
    creator.change_power(
        room,
        users={moderator.user_id: 75, accepting[0].user_id: 50},
        events={"m.room.name": 75},
        ban=60,
    )
    moderator.send_state(room, "m.room.name", {"name": "third name"})
    accepting[0].kick(room, accepting[1].user_id)

    creator.send_state(room, "m.room.join_rules", {"join_rule": "public"})
    for member in rest[12:]:
        member.join(room)
        member.send_message(room, "late but here")
    creator.send_state(room, "org.example.widget", {"url": "https://example.org"}, "one")
    creator.send_state(room, "org.example.widget", {}, "two")
    moderator.send_state(room, "m.room.topic", {"topic": "third topic"})
    creator.send_message(room, "the end of the beginning")
    return room
