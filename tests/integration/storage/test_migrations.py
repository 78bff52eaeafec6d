"""Migrations: up, down, and the same tables as the schema."""

from __future__ import annotations

from sqlalchemy import Connection, text

from storage import migrate


def _tables(connection: Connection) -> set[str]:
    if connection.dialect.name == "postgresql":
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    else:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return set(connection.scalars(text(query)))


def test_up_and_down_again(empty_database_url: str) -> None:
    url = empty_database_url
    assert migrate.current(url) is None
    assert not migrate.is_current(url)
    migrate.upgrade(url)
    assert migrate.is_current(url)
    migrate.upgrade(url)
    migrate.downgrade(url, "0001")
    assert migrate.current(url) == "0001"
    migrate.downgrade(url, "base")
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert migrate.is_current(url)
