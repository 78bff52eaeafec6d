"""Rooms and their versions."""

from __future__ import annotations

from sqlalchemy import Connection, select, text

from storage.schema import rooms


def insert_room(
    connection: Connection, room_id: str, room_version: str, creator: str | None
) -> None:
    """Make a room known. A room that is known keeps what is known of it."""
    connection.execute(
        text(
            "INSERT INTO rooms (room_id, is_public, creator, room_version, has_auth_chain_index)"
            " VALUES (:room_id, false, :creator, :room_version, false)"
            " ON CONFLICT (room_id) DO UPDATE SET"
            " creator = coalesce(rooms.creator, excluded.creator),"
            " room_version = coalesce(rooms.room_version, excluded.room_version)"
        ),
        {"room_id": room_id, "creator": creator, "room_version": room_version},
    )


def lock_room(connection: Connection, room_id: str) -> bool:
    """Make other changes to the graph or the current state of a room wait for this transaction.

    Call it before anything is read: only what is read afterwards is sure not to change.

    Returns:
        False when the room is not known.
    """
    # SQLite has one writer; rows that refer to the room may still be inserted on PostgreSQL.
    query = select(rooms.c.room_id).where(rooms.c.room_id == room_id)
    return connection.scalar(query.with_for_update(key_share=True)) is not None


def load_room_version(connection: Connection, room_id: str) -> str | None:
    """The identifier of a room's version; None when the room is not known."""
    return connection.scalar(select(rooms.c.room_version).where(rooms.c.room_id == room_id))
