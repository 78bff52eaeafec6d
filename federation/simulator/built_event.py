"""One event of a simulated room, signed and ready to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.events import StateKey
from federation.simulator.sealing import Sealed
from federation.simulator.states import StateNode


class BuiltEvent:
    """One event of a simulated room.

    Attributes:
        event_id, type, state_key, sender, depth: the PDU's fields.
        json: the whole PDU as JSON, as every resident sends it.
        prev_event_ids, auth_event_ids: ids, whatever the format of the room version.
        membership: of an `m.room.member` event, else None.
        reference_hash: unpadded Base64; versions 1 and 2 put it beside references.
        replaces: id of the event whose entry this state event took, if any.
        rejected: the authorisation rules refuse this event; it is in no state.
        before, after: the room's state before and after it.
        origin_server_ts: in milliseconds.
    """

    __slots__ = (
        "after",
        "auth_event_ids",
        "before",
        "depth",
        "event_id",
        "json",
        "membership",
        "origin_server_ts",
        "prev_event_ids",
        "reference_hash",
        "rejected",
        "replaces",
        "sender",
        "state_key",
        "type",
    )

    def __init__(
        self,
        pdu: Mapping[str, Any],
        sealed: Sealed,
        *,
        prev_event_ids: tuple[str, ...],
        auth_event_ids: tuple[str, ...],
        before: StateNode,
        replaces: str | None,
        rejected: bool,
    ) -> None:
        self.event_id = sealed.event_id
        self.json = sealed.json
        self.reference_hash = sealed.reference_hash
        self.type: str = pdu["type"]
        self.state_key: str | None = pdu.get("state_key")
        self.sender: str = pdu["sender"]
        self.depth: int = pdu["depth"]
        self.origin_server_ts: int = pdu["origin_server_ts"]
        self.prev_event_ids = prev_event_ids
        self.auth_event_ids = auth_event_ids
        membership = pdu["content"].get("membership") if self.type == "m.room.member" else None
        self.membership: str | None = membership if isinstance(membership, str) else None
        self.replaces = replaces
        self.rejected = rejected
        self.before = before
        if self.state_key is None or rejected:
            self.after = before
        else:
            self.after = StateNode(before, ((StateKey(self.type, self.state_key), self.event_id),))

    @property
    def key(self) -> StateKey | None:
        """The entry this event sets; None for an event that is not a state event."""
        return None if self.state_key is None else StateKey(self.type, self.state_key)

    @property
    def text(self) -> str:
        """The PDU as JSON text."""
        return self.json.decode("utf-8")

    def __repr__(self) -> str:
        return f"<BuiltEvent {self.event_id} {self.type}/{self.state_key!r}>"
