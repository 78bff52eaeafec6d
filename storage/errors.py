"""The named errors of the tables. Each tells the operator what failed and what to do."""

from __future__ import annotations


class StorageError(Exception):
    """Anything that goes wrong with the database and has a name here."""


class InvalidDatabaseUrl(StorageError):
    """The database in the config is not one that this project can use."""


class DatabaseUnavailable(StorageError):
    """The database does not answer, is not reachable, or stays locked."""


class SchemaOutOfDate(StorageError):
    """The database has other tables than this version of the project needs."""


class RoomStillPartial(StorageError):
    """A room was to be marked as fully stated while it has events with partial state."""

    def __init__(self, room_id: str) -> None:
        super().__init__(
            f"{room_id} still has events with partial state: they have to be resynced first"
        )
        self.room_id = room_id


class LeaseLost(StorageError):
    """A lease expired, or another instance took it over; the transaction must not commit."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the lease on {key} is no longer ours: another instance has taken over")
        self.key = key
