"""What other servers may ask about the history of a room, and whether they are in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, func, literal, select

from storage import bulk
from storage.schema import (
    current_state_events,
    event_edges,
    event_json,
    events,
    partial_state_events,
    partial_state_rooms_servers,
    rejections,
)

MEMBER = "m.room.member"
HOPS_AT_ONCE = 10
"""How far one query walks back: a graph can be made in which far more steps have no end."""


class HistoricEvent(NamedTuple):
    """An accepted event of a room's history; `partial`: its state is not full yet."""

    event_id: str
    room_id: str
    json: str
    depth: int
    outlier: bool
    partial: bool


class _Step(NamedTuple):
    """An event that a walk back through the graph came to."""

    event_id: str
    hops: int
    depth: int
    rejected: bool


def load_event(connection: Connection, event_id: str) -> HistoricEvent | None:
    """One accepted event, in the graph or not."""
    return next(iter(_load(connection, [event_id])), None)


def load_before(
    connection: Connection,
    room_id: str,
    start: Collection[str],
    *,
    excluded: Collection[str],
    limit: int,
    min_depth: int = 0,
) -> list[HistoricEvent]:
    """Up to `limit` accepted events of the graph that lead to `start`, the nearest first.

    Args:
        start: event ids, which are not part of the answer.
        excluded: event ids at which the walk turns back.
    """
    seen = set(start)
    found: dict[str, None] = {}
    frontier = list(start)
    for _ in range(limit // HOPS_AT_ONCE + 1):
        if not frontier or len(found) >= limit:
            break
        steps = [
            step
            for step in _step_back(connection, room_id, frontier, excluded)
            if step.event_id not in seen and step.depth >= min_depth
        ]
        seen.update(step.event_id for step in steps)
        found.update((step.event_id, None) for step in steps if not step.rejected)
        frontier = [step.event_id for step in steps if step.hops == HOPS_AT_ONCE][:limit]
    order = list(found)[:limit]
    loaded = {event.event_id: event for event in _load(connection, order)}
    return [loaded[event_id] for event_id in order if event_id in loaded]


def _step_back(
    connection: Connection, room_id: str, start: Collection[str], excluded: Collection[str]
) -> list[_Step]:
    """What is up to `HOPS_AT_ONCE` edges before `start`, the nearest first."""
    edges = event_edges
    back = (
        select(edges.c.prev_event_id.label("event_id"), literal(1).label("hops"))
        .where(
            bulk.is_in(connection, edges.c.event_id, start),
            ~bulk.is_in(connection, edges.c.prev_event_id, excluded),
        )
        .cte("back", recursive=True)
    )
    back = back.union(
        select(edges.c.prev_event_id, back.c.hops + 1)
        .join(back, edges.c.event_id == back.c.event_id)
        .where(back.c.hops < HOPS_AT_ONCE, ~bulk.is_in(connection, edges.c.prev_event_id, excluded))
    )
    hops = func.min(back.c.hops)
    rows = connection.execute(
        select(back.c.event_id, hops, events.c.depth, rejections.c.event_id.is_not(None))
        .join(events, events.c.event_id == back.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == back.c.event_id)
        .where(events.c.room_id == room_id, events.c.outlier.is_(False))
        .group_by(back.c.event_id, events.c.depth, rejections.c.event_id)
        .order_by(hops, events.c.depth.desc(), back.c.event_id)
    )
    return [_Step(*row) for row in rows]


def load_in_graph(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> list[HistoricEvent]:
    """Those of `event_ids` that are accepted events in the graph of a room."""
    return [
        event
        for event in _load(connection, event_ids)
        if event.room_id == room_id and not event.outlier
    ]


def is_server_in_room(connection: Connection, room_id: str, server: str) -> bool:
    """Whether a server is in a room, as far as is known: in partial state the join named it."""
    return is_partial_server(connection, room_id, server) or has_member(connection, room_id, server)


def is_partial_server(connection: Connection, room_id: str, server: str) -> bool:
    """Whether the join of a partially stated room named the server as being in it."""
    table = partial_state_rooms_servers
    query = select(table.c.server_name).where(
        table.c.room_id == room_id, table.c.server_name == server
    )
    return bulk.is_storable(server) and connection.scalar(query) is not None


def has_member(connection: Connection, room_id: str, server: str) -> bool:
    """Whether the current state of a room has a joined user of the server."""
    table = current_state_events
    query = (
        select(table.c.event_id)
        .where(
            table.c.room_id == room_id,
            table.c.type == MEMBER,
            table.c.membership == "join",
            table.c.state_key.endswith(f":{server}", autoescape=True),
            # Of @user:example.com:8448 the server is not "8448".
            ~table.c.state_key.like(f"%:%:{_escaped(server)}", escape="/"),
        )
        .limit(1)
    )
    return bulk.is_storable(server) and connection.scalar(query) is not None


def load_joined_servers(connection: Connection, room_id: str) -> list[str]:
    """The servers with a joined user in the current state of a room, sorted."""
    table = current_state_events
    users = connection.scalars(
        select(table.c.state_key).where(
            table.c.room_id == room_id, table.c.type == MEMBER, table.c.membership == "join"
        )
    )
    return sorted({user_id.partition(":")[2] for user_id in users} - {""})


def _escaped(text: str) -> str:
    """`text` for LIKE with "/" as its escape."""
    return text.replace("/", "//").replace("%", "/%").replace("_", "/_")


def _load(connection: Connection, event_ids: Collection[str]) -> list[HistoricEvent]:
    rows = connection.execute(
        select(
            events.c.event_id,
            events.c.room_id,
            event_json.c.json,
            events.c.depth,
            events.c.outlier,
            partial_state_events.c.event_id.is_not(None),
        )
        .join(event_json, event_json.c.event_id == events.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == events.c.event_id)
        .outerjoin(partial_state_events, partial_state_events.c.event_id == events.c.event_id)
        .where(
            bulk.is_in(connection, events.c.event_id, event_ids), rejections.c.event_id.is_(None)
        )
    )
    return [HistoricEvent._make(row) for row in rows]
