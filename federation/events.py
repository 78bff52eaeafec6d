"""Events: PDUs as values.

`Event` is the one representation of an event in this project. It is built from a PDU whose
top-level fields have the right types, so code that holds an `Event` never checks them again;
`content` is whatever the sender put there and stays hostile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from federation.errors import InvalidEvent
from federation.hashing import compute_event_id
from federation.room_versions import EventFormat, RoomVersion, get_room_version

MAX_PREV_EVENTS = 20
"""Limit on `prev_events` (specification, PDU schema)."""
MAX_AUTH_EVENTS = 10
"""Limit on `auth_events` (specification, PDU schema)."""


class StateKey(NamedTuple):
    """The key of a state event: `(type, state_key)`. Equal to the plain tuple."""

    type: str
    state_key: str


class Event:
    """One event of a room.

    Attributes:
        event_id: with its `$`.
        room_id: with its `!`; for a version 12 create event it follows from the event id.
        type, sender, content, depth, origin_server_ts: the PDU's fields.
        state_key: None for an event that is not a state event.
        auth_event_ids, prev_event_ids: event ids, whatever the format of the room version,
            without duplicates and in the PDU's order.
        room_version: the rules of its room.
        pdu: the PDU as received. Not to be changed.
    """

    __slots__ = (
        "_json",
        "auth_event_ids",
        "content",
        "depth",
        "event_id",
        "origin_server_ts",
        "pdu",
        "prev_event_ids",
        "room_id",
        "room_version",
        "sender",
        "state_key",
        "type",
    )

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    sender: str
    content: Mapping[str, Any]
    depth: int
    origin_server_ts: int
    auth_event_ids: tuple[str, ...]
    prev_event_ids: tuple[str, ...]
    room_version: RoomVersion
    pdu: Mapping[str, Any]
    _json: str | None

    @classmethod
    def from_pdu(
        cls,
        pdu: dict[str, Any],
        room_version: str,
        *,
        event_id: str | None = None,
        json_text: str | None = None,
    ) -> Event:
        """The event that `pdu` describes.

        Signatures, hashes, sizes and limits are not checked here (`federation.checks` does);
        `depth`, `origin_server_ts`, `auth_events` and `prev_events` may be missing, so that
        trusted fixtures can be short.

        Args:
            pdu: the event in the federation format of its room version.
            room_version: identifier of a room version, "1" to "12".
            event_id: the event's id where it is known (our own database, a trusted fixture, or
                a check that has computed it already). Otherwise it is read from the PDU
                (versions 1 and 2) or computed from it.
            json_text: the JSON that `pdu` was parsed from, kept so that it need not be encoded
                again.

        Raises:
            InvalidEvent: a field is missing or has the wrong type.
            UnknownRoomVersion: see `get_room_version`.
        """
        version = get_room_version(room_version)
        if not isinstance(pdu, dict):
            raise InvalidEvent("the event is not a JSON object")
        event = cls.__new__(cls)
        try:
            event.type = pdu["type"]
            event.sender = pdu["sender"]
            event.content = pdu["content"]
            event.state_key = pdu.get("state_key")
            event.depth = pdu.get("depth", 0)
            event.origin_server_ts = pdu.get("origin_server_ts", 0)
        except KeyError as error:
            raise InvalidEvent(f"{error.args[0]} is missing") from None
        event.pdu = pdu
        event.room_version = version
        event._json = json_text
        event._check_types()
        event.auth_event_ids = _references(pdu, "auth_events", version)
        event.prev_event_ids = _references(pdu, "prev_events", version)
        event.event_id = compute_event_id(pdu, version) if event_id is None else event_id
        event.room_id = _room_id(event)
        return event

    def _check_types(self) -> None:
        if type(self.type) is not str:
            raise InvalidEvent("type is not a string")
        if type(self.sender) is not str:
            raise InvalidEvent("sender is not a string")
        if type(self.content) is not dict:
            raise InvalidEvent("content is not an object")
        if self.state_key is not None and type(self.state_key) is not str:
            raise InvalidEvent("state_key is not a string")
        if type(self.depth) is not int:
            raise InvalidEvent("depth is not an integer")
        if type(self.origin_server_ts) is not int:
            raise InvalidEvent("origin_server_ts is not an integer")

    @property
    def is_state(self) -> bool:
        """Whether this is a state event."""
        return self.state_key is not None

    @property
    def key(self) -> StateKey:
        """The state entry this event sets. Only for state events."""
        if self.state_key is None:
            raise ValueError(f"{self.event_id} is not a state event")
        return StateKey(self.type, self.state_key)

    @property
    def json(self) -> str:
        """The PDU as JSON text, as received where that was kept."""
        if self._json is None:
            self._json = _dump(self.pdu)
        return self._json

    def __repr__(self) -> str:
        return f"<Event {self.event_id} {self.type}/{self.state_key!r} in {self.room_id}>"


def _dump(pdu: Mapping[str, Any]) -> str:
    text = json.dumps(pdu, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates, in what no hash covers: escaped, they can be stored.
        text = json.dumps(pdu, separators=(",", ":"))
    return text


def _references(pdu: Mapping[str, Any], field: str, version: RoomVersion) -> tuple[str, ...]:
    """The event ids in `auth_events` or `prev_events`.

    Versions 1 and 2 hold pairs of event id and hashes there, later versions hold ids.
    """
    references = pdu.get(field, ())
    if type(references) is not list and references != ():
        raise InvalidEvent(f"{field} is not a list")
    if version.event_format is EventFormat.V1:
        try:
            references = [pair if type(pair) is str else pair[0] for pair in references]
        except (TypeError, IndexError, KeyError):
            raise InvalidEvent(f"{field} holds something that is not a pair") from None
    for event_id in references:
        if type(event_id) is not str:
            raise InvalidEvent(f"{field} holds something that is not an event id")
    return tuple(dict.fromkeys(references))


def _room_id(event: Event) -> str:
    if (
        event.room_version.room_id_is_create_hash
        and event.type == "m.room.create"
        and event.state_key == ""
    ):
        return "!" + event.event_id[1:]
    room_id = event.pdu.get("room_id")
    if type(room_id) is not str:
        raise InvalidEvent("room_id is missing or not a string")
    return room_id
