"""An event as rows of Synapse's tables. Pure."""

from __future__ import annotations

from typing import Any

from federation.events import Event
from federation.room_versions import EventFormat
from storage.bulk import is_storable

EVENT_COLUMNS = (
    "event_id",
    "room_id",
    "type",
    "state_key",
    "sender",
    "topological_ordering",
    "depth",
    "stream_ordering",
    "origin_server_ts",
    "received_ts",
    "instance_name",
    "processed",
    "outlier",
    "contains_url",
    "rejection_reason",
)
JSON_COLUMNS = ("event_id", "room_id", "internal_metadata", "json", "format_version")
AUTH_COLUMNS = ("event_id", "auth_id", "room_id")
STATE_COLUMNS = ("event_id", "room_id", "type", "state_key")
MEMBERSHIP_COLUMNS = (
    "event_id",
    "user_id",
    "sender",
    "room_id",
    "membership",
    "display_name",
    "avatar_url",
    "event_stream_ordering",
)
REDACTION_COLUMNS = ("event_id", "redacts", "received_ts")
REJECTION_COLUMNS = ("event_id", "reason", "last_check")

_FORMAT_VERSIONS = {
    EventFormat.V1: 1,
    EventFormat.V3: 2,
    EventFormat.V4: 3,
    EventFormat.V12: 4,
}
"""`event_json.format_version`, as Synapse numbers the event formats."""


_CHECKED_FIELDS = ("event_id", "room_id", "type", "sender", "state_key")


def unstorable_reason(event: Event) -> str | None:
    """Why the tables cannot hold `event`; None when they can.

    PostgreSQL's text has no U+0000, and UTF-8 no lone surrogates; both can be written in JSON.
    SQLite could hold the former, and is held to the same rule.
    """
    references = event.auth_event_ids + event.prev_event_ids
    columns = (event.event_id, event.room_id, event.type, event.sender, event.state_key or "")
    # One look at everything: this runs for each of very many events.
    if is_storable("".join((*columns, *references, event.json))):
        return None
    for field, value in zip(_CHECKED_FIELDS, columns, strict=True):
        if not is_storable(value):
            return f"its {field} has a character that the database cannot hold"
    if not is_storable("".join(references)):
        return "it refers to an event id with a character that the database cannot hold"
    return "its JSON has a character that the database cannot hold"


def event_row(
    event: Event,
    *,
    stream_ordering: int,
    outlier: bool,
    rejection: str | None,
    instance_name: str,
    received_ts: int,
) -> tuple[Any, ...]:
    """The row of `events`, in the order of EVENT_COLUMNS."""
    return (
        event.event_id,
        event.room_id,
        event.type,
        event.state_key,
        event.sender,
        event.depth,
        event.depth,
        stream_ordering,
        event.origin_server_ts,
        received_ts,
        instance_name,
        True,
        outlier,
        isinstance(event.content.get("url"), str),
        rejection,
    )


def json_row(event: Event, internal_metadata: str) -> tuple[Any, ...]:
    """The row of `event_json`."""
    return (
        event.event_id,
        event.room_id,
        internal_metadata,
        event.json,
        _FORMAT_VERSIONS[event.room_version.event_format],
    )


def auth_rows(event: Event) -> list[tuple[Any, ...]]:
    """The rows of `event_auth`, which Synapse keeps for state events only."""
    if not event.is_state:
        return []
    return [(event.event_id, auth_id, event.room_id) for auth_id in event.auth_event_ids]


def membership_row(event: Event, stream_ordering: int) -> tuple[Any, ...] | None:
    """The row of `room_memberships` for an accepted `m.room.member` event, else None."""
    if event.type != "m.room.member" or event.state_key is None:
        return None
    membership = _text(event.content.get("membership"))
    if membership is None:
        return None
    return (
        event.event_id,
        event.state_key,
        event.sender,
        event.room_id,
        membership,
        _text(event.content.get("displayname")),
        _text(event.content.get("avatar_url")),
        stream_ordering,
    )


def redaction_row(event: Event, received_ts: int) -> tuple[Any, ...] | None:
    """The row of `redactions` for an accepted `m.room.redaction` event, else None."""
    if event.type != "m.room.redaction":
        return None
    source = event.content if event.room_version.redacts_in_content else event.pdu
    redacts = _text(source.get("redacts"))
    return None if redacts is None else (event.event_id, redacts, received_ts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and is_storable(value) else None
