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


class RoomNotPartial(StorageError):
    """A room that is not in partial state was to be taken out of it."""

    def __init__(self, room_id: str) -> None:
        super().__init__(
            f"{room_id} is not in partial state: another instance has completed or abandoned it"
        )
        self.room_id = room_id


class RoomVersionUnknown(StorageError):
    """A room has events but no version."""

    def __init__(self, room_id: str) -> None:
        super().__init__(
            f"the version of {room_id} is not known, so its events cannot be read: its row in the"
            " table rooms is missing or has no room_version"
        )
        self.room_id = room_id


class UnstorableEvent(StorageError):
    """An event with text that a database cannot hold; it has to be dropped on receipt."""

    def __init__(self, event_id: str, reason: str) -> None:
        super().__init__(f"{event_id!r} cannot be stored: {reason}")
        self.event_id = event_id


class UnknownEvents(StorageError):
    """State names events that are not stored."""

    def __init__(self, room_id: str, event_ids: list[str]) -> None:
        shown = ", ".join(event_ids[:3])
        more = f" and {len(event_ids) - 3} more" if len(event_ids) > 3 else ""
        super().__init__(f"the state of {room_id} names events that are not stored: {shown}{more}")
        self.event_ids = event_ids


class UnknownStateGroup(StorageError):
    """A state group that does not exist."""

    def __init__(self, group: int) -> None:
        super().__init__(f"there is no state group {group}: the database has lost state")
        self.group = group
