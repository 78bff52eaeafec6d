"""What other servers sent us: transactions that were answered, events that wait to be taken in.

Waiting events are in Synapse's `federation_inbound_events_staging`. They have passed checks 1 to
3; what is stored of them is the JSON that goes on, redacted where check 3 says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, text

from storage import bulk
from storage.events import find_in_graph
from storage.schema import (
    federation_inbound_events_staging,
    local_current_membership,
    partial_state_rooms,
    resync_received_transactions,
    rooms,
)


class StagedEvent(NamedTuple):
    """An event that waits: `origin` is who sent it, `received_ts` when, in ms."""

    event_id: str
    origin: str
    room_id: str
    received_ts: int
    json: str


class ReceivingRoom(NamedTuple):
    """A room whose events we take in."""

    room_id: str
    room_version: str
    partial: bool


def load_response(connection: Connection, origin: str, transaction_id: str) -> str | None:
    """What was answered to a transaction of `origin`; None if it is new."""
    table = resync_received_transactions
    return connection.scalar(
        select(table.c.response).where(
            table.c.origin == origin, table.c.transaction_id == transaction_id
        )
    )


def store_transaction(
    connection: Connection,
    origin: str,
    transaction_id: str,
    response: str,
    staged: Sequence[StagedEvent],
    *,
    now_ms: int,
) -> str:
    """Note the answer to a transaction and stage its events, both or neither.

    Events that are in the graph, or wait already, are left out.

    Returns:
        The answer that holds: that of the first time, if the transaction was stored meanwhile.
    """
    inserted = connection.execute(
        text(
            "INSERT INTO resync_received_transactions"
            " (origin, transaction_id, received_ts, response)"
            " VALUES (:origin, :transaction_id, :now_ms, :response)"
            " ON CONFLICT (origin, transaction_id) DO NOTHING"
        ),
        {
            "origin": origin,
            "transaction_id": transaction_id,
            "now_ms": now_ms,
            "response": response,
        },
    )
    if inserted.rowcount == 0:
        return load_response(connection, origin, transaction_id) or response
    known = find_in_graph(connection, [event.event_id for event in staged])
    rows = [event._asdict() for event in staged if event.event_id not in known]
    if rows:
        connection.execute(
            text(
                "INSERT INTO federation_inbound_events_staging"
                " (origin, room_id, event_id, received_ts, event_json, internal_metadata)"
                " VALUES (:origin, :room_id, :event_id, :received_ts, :json, '{}')"
                " ON CONFLICT (origin, event_id) DO NOTHING"
            ),
            rows,
        )
    return response


def delete_old_transactions(connection: Connection, *, before_ms: int) -> int:
    """Forget transactions received before a time; returns how many."""
    table = resync_received_transactions
    return connection.execute(delete(table).where(table.c.received_ts < before_ms)).rowcount


def load_staged(
    connection: Connection,
    room_id: str,
    origin: str,
    *,
    limit: int,
    without: Collection[str] = (),
) -> list[StagedEvent]:
    """The events of a room from one server that wait longest; `without`: ids to leave out."""
    table = federation_inbound_events_staging
    query = select(
        table.c.event_id, table.c.origin, table.c.room_id, table.c.received_ts, table.c.event_json
    ).where(table.c.room_id == room_id, table.c.origin == origin)
    if without:
        query = query.where(~bulk.is_in(connection, table.c.event_id, without))
    rows = connection.execute(query.order_by(table.c.received_ts).limit(limit))
    return [StagedEvent._make(row) for row in rows]


def load_staged_events(
    connection: Connection, room_id: str, event_ids: Collection[str], *, limit: int
) -> list[StagedEvent]:
    """Those of `event_ids` that wait, one row for each server that sent them, at most `limit`."""
    table = federation_inbound_events_staging
    rows = connection.execute(
        select(
            table.c.event_id,
            table.c.origin,
            table.c.room_id,
            table.c.received_ts,
            table.c.event_json,
        )
        .where(table.c.room_id == room_id, bulk.is_in(connection, table.c.event_id, event_ids))
        .limit(limit)
    )
    return [StagedEvent._make(row) for row in rows]


def load_staged_lanes(connection: Connection) -> list[tuple[str, str]]:
    """The rooms that have events waiting, each with the servers that sent them."""
    table = federation_inbound_events_staging
    rows = connection.execute(select(table.c.room_id, table.c.origin).distinct())
    return [(row.room_id, row.origin) for row in rows]


def count_staged(connection: Connection, origin: str) -> int:
    """How many events of `origin` wait."""
    table = federation_inbound_events_staging
    query = select(func.count()).select_from(table).where(table.c.origin == origin)
    return connection.scalar(query) or 0


def delete_staged(connection: Connection, room_id: str, event_ids: Collection[str]) -> None:
    """Events that have been taken in, or refused, wait no longer, whoever sent them."""
    table = federation_inbound_events_staging
    connection.execute(
        delete(table).where(
            table.c.room_id == room_id, bulk.is_in(connection, table.c.event_id, event_ids)
        )
    )


def load_receiving_rooms(
    connection: Connection, room_ids: Collection[str]
) -> Mapping[str, ReceivingRoom]:
    """Those of `room_ids` that are partial here or that a local user is in."""
    joined = (
        select(local_current_membership.c.room_id)
        .where(
            bulk.is_in(connection, local_current_membership.c.room_id, room_ids),
            local_current_membership.c.membership == "join",
        )
        .distinct()
    )
    inside = set(connection.scalars(joined))
    rows = connection.execute(
        select(rooms.c.room_id, rooms.c.room_version, partial_state_rooms.c.room_id)
        .outerjoin(partial_state_rooms, partial_state_rooms.c.room_id == rooms.c.room_id)
        .where(bulk.is_in(connection, rooms.c.room_id, room_ids))
    )
    return {
        room_id: ReceivingRoom(room_id, room_version, partial is not None)
        for room_id, room_version, partial in rows
        if room_version is not None and (room_id in inside or partial is not None)
    }
