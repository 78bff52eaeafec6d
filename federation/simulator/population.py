"""Filling a simulated room: many members over many servers, with histories behind them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from federation.simulator.built_event import BuiltEvent
from federation.simulator.room import RoomBuilder


@dataclass(frozen=True, slots=True)
class Mix:
    """What becomes of the members of a room, as shares of them between 0 and 1.

    Those who neither left nor were kicked, banned or only invited are joined at the end.

    Attributes:
        left, kicked, invited, banned: how they end.
        renamed: joined members who changed their display name, `renames` times each.
        renames: how often.
        returned: joined members who had left before.
        moderators: joined members who are given power level 50, in at most ten steps.
        messages: messages sent meanwhile, per member.
    """

    left: float = 0.05
    kicked: float = 0.005
    invited: float = 0.01
    banned: float = 0.01
    renamed: float = 0.1
    renames: int = 1
    returned: float = 0.02
    moderators: float = 0.0
    messages: float = 0.0


ALL_JOINED = Mix(left=0, kicked=0, invited=0, banned=0, renamed=0, returned=0)
"""Everybody joins once and stays."""


def populate(
    room: RoomBuilder,
    members: int,
    servers: Sequence[str],
    *,
    seed: int = 0,
    mix: Mix | None = None,
    prefix: str = "user",
) -> list[str]:
    """Give `room` as many further member entries, users of `servers` in turn.

    The room must let anybody join. Deterministic.

    Returns:
        The user ids, in the order in which they came.
    """
    mix = mix or Mix()
    chance = random.Random(seed)
    promote_every = max(1, members // 10) if mix.moderators else 0
    promoted: dict[str, int] = {}
    users: list[str] = []
    for number in range(members):
        user_id = f"@{prefix}{number}:{servers[number % len(servers)]}"
        users.append(user_id)
        _live(room, user_id, number, mix, chance)
        if chance.random() < mix.messages and room.membership(user_id) == "join":
            room.message(f"Message {number}", sender=user_id)
        if (
            promote_every
            and chance.random() < mix.moderators
            and room.membership(user_id) == "join"
        ):
            promoted[user_id] = 50
        if promoted and number % promote_every == promote_every - 1:
            room.set_power_levels({"users": promoted})
            promoted = {}
    if promoted:
        room.set_power_levels({"users": promoted})
    return users


def _live(room: RoomBuilder, user_id: str, number: int, mix: Mix, chance: random.Random) -> None:
    """One member's history, from its first event to the membership it ends with."""
    name = f"User {number}"
    fate = chance.random()
    if fate < mix.invited:
        room.invite(user_id)
        return
    fate -= mix.invited
    room.join(user_id, name)
    for share, end in ((mix.left, room.leave), (mix.kicked, room.kick), (mix.banned, room.ban)):
        if fate < share:
            end(user_id)
            return
        fate -= share
    if chance.random() < mix.returned:
        room.leave(user_id)
        room.join(user_id, name)
    if chance.random() < mix.renamed:
        for change in range(mix.renames):
            room.rename(user_id, f"{name} ({change + 1})")


def long_history(room: RoomBuilder, user_ids: Sequence[str], changes: int) -> list[BuiltEvent]:
    """Every joined user of `user_ids` takes `changes` further display names, in turn."""
    return [
        room.rename(user_id, f"Name {change}") for change in range(changes) for user_id in user_ids
    ]


def fork_and_merge(
    room: RoomBuilder, branches: Sequence[Sequence[str]], *, messages: int = 0
) -> BuiltEvent:
    """Fork the room and merge it again.

    On each branch its users (joined, and on no other branch) change their display names one
    after another, and the last of them sends `messages` messages.

    Returns:
        The message of the creator that merges the branches.
    """
    start = tuple(room.forward_extremities)
    tips: list[str] = []
    for number, user_ids in enumerate(branches):
        tip = start
        for user_id in user_ids:
            tip = (room.rename(user_id, f"On branch {number}", prev_events=tip).event_id,)
        for message in range(messages if user_ids else 0):
            sent = room.message(f"Branch {number}: {message}", sender=user_ids[-1], prev_events=tip)
            tip = (sent.event_id,)
        tips.extend(tip if tip != start else ())
    return room.message("Merged", prev_events=tips or start)
