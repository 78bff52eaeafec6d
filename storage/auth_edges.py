"""The auth graph as edges, for when the events themselves are not needed."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from storage import bulk, schema


def load_auth_edges(
    connection: Connection, event_ids: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The auth events of state events and of all their auth ancestors.

    Returns:
        Event id to the ids of its auth events. Events that are not stored, and those that have
        no auth events, are absent.
    """
    auth = schema.event_auth
    seeds = (
        select(auth.c.event_id, auth.c.auth_id)
        .where(bulk.is_in(connection, auth.c.event_id, event_ids))
        .cte("edges", recursive=True)
    )
    # UNION, not UNION ALL: it also ends on cycles, which rooms of version 1 and 2 can have.
    edges = seeds.union(
        select(auth.c.event_id, auth.c.auth_id).join(seeds, auth.c.event_id == seeds.c.auth_id)
    )
    found: dict[str, list[str]] = {}
    for event_id, auth_id in connection.execute(select(edges.c.event_id, edges.c.auth_id)):
        found.setdefault(event_id, []).append(auth_id)
    return {event_id: tuple(auth_ids) for event_id, auth_ids in found.items()}
