"""How a resident answers questions about a room's history."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from federation.simulator.answers import Answer
from federation.simulator.built_event import BuiltEvent
from federation.simulator.room import RoomBuilder
from federation.simulator.world import World

MAX_MISSING_EVENTS = 20
"""At most this many events are in an answer of `/get_missing_events`, as deployed servers do."""
MAX_BACKFILL = 100


async def state_ids(world: World, room: RoomBuilder, event: BuiltEvent) -> Answer:
    """`/state_ids`: the state before `event`, and its auth chain, as ids."""
    listing = await asyncio.to_thread(world.list_state, room, event.before)
    return Answer(
        {
            "pdu_ids": [b'"%s"' % event_id.encode() for event_id in listing.state],
            "auth_chain_ids": [b'"%s"' % event_id.encode() for event_id in listing.auth_chain],
        }
    )


async def state(world: World, room: RoomBuilder, event: BuiltEvent) -> Answer:
    """`/state`: the state before `event`, and its auth chain, in full."""
    listing = await asyncio.to_thread(world.list_state, room, event.before)
    return Answer(
        {
            "auth_chain": [room.events[event_id].json for event_id in listing.auth_chain],
            "pdus": [room.events[event_id].json for event_id in listing.state],
        }
    )


def event_auth(room: RoomBuilder, event: BuiltEvent) -> Answer:
    """`/event_auth`: the auth chain of `event`."""
    chain = room.auth_chain([event.event_id])
    return Answer({"auth_chain": [room.events[event_id].json for event_id in chain]})


def one_event(server_name: str, event: BuiltEvent, now_ms: int) -> Answer:
    """`/event`: one event, in the form of a transaction."""
    return Answer.of(origin=server_name, origin_server_ts=now_ms).with_field("pdus", [event.json])


def missing_events(
    room: RoomBuilder,
    latest: Iterable[str],
    earliest: Collection[str],
    *,
    limit: int,
    min_depth: int,
    unseen: Collection[str],
) -> Answer:
    """`/get_missing_events`: what lies between `earliest` and `latest`, oldest first."""
    limit = max(0, min(limit, MAX_MISSING_EVENTS))
    found = _walk_back(room, latest, {*earliest, *unseen}, limit=limit, min_depth=min_depth)
    found.sort(key=lambda event: event.depth)
    return Answer({"events": [event.json for event in found]})


def backfill(
    room: RoomBuilder,
    server_name: str,
    start: Iterable[str],
    *,
    limit: int,
    unseen: Collection[str],
    now_ms: int,
) -> Answer:
    """`/backfill`: the events of `start` and those before them, newest first."""
    limit = max(0, min(limit, MAX_BACKFILL))
    first = [room.events[known] for known in start if known in room.events and known not in unseen]
    known = {*unseen, *(event.event_id for event in first)}
    found = first + _walk_back(
        room, (event.event_id for event in first), known, limit=limit, min_depth=0
    )
    found.sort(key=lambda event: -event.depth)
    answer = Answer.of(origin=server_name, origin_server_ts=now_ms)
    return answer.with_field("pdus", [event.json for event in found[:limit]])


def _walk_back(
    room: RoomBuilder,
    start: Iterable[str],
    excluded: Collection[str],
    *,
    limit: int,
    min_depth: int,
) -> list[BuiltEvent]:
    """Up to `limit` events that lead to `start`, nearest first, without `start` itself."""
    starting = [known for known in start if known in room.events]
    seen = {*starting, *excluded}
    found: list[BuiltEvent] = []
    level = starting
    while level and len(found) < limit:
        before: dict[str, None] = {}
        for event_id in level:
            before.update(dict.fromkeys(room.events[event_id].prev_event_ids))
        level = []
        for event_id in before:
            event = room.events.get(event_id)
            if event is None or event_id in seen or event.depth < min_depth:
                continue
            seen.add(event_id)
            level.append(event_id)
            found.append(event)
    return found[:limit]
