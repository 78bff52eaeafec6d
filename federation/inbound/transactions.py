"""The body of `/send/{txnId}`, within its limits. Pure.

Source: server-server API, "Transactions".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from federation.inbound.errors import RequestRefused
from federation.response_parser import RawPdu

MAX_PDUS: Final = 50
MAX_EDUS: Final = 100
MAX_TRANSACTION_ID_BYTES: Final = 255


class Transaction(NamedTuple):
    """A transaction within its limits.

    Attributes:
        transaction_id: chosen by its sender; the same again is a repetition.
        pdus: the entries that are objects with a `room_id`, by room; nothing else is checked.
        edus: how many ephemeral units came along.
    """

    transaction_id: str
    pdus: Mapping[str, list[RawPdu]]
    edus: int


def parse_transaction(transaction_id: str, content: Any, origin: str) -> Transaction:
    """The transaction of `origin` that a request body holds.

    Raises:
        RequestRefused: 400, it is malformed or too large; 403, it names another origin.
    """
    if not 0 < len(transaction_id.encode(errors="replace")) <= MAX_TRANSACTION_ID_BYTES:
        raise RequestRefused(400, "M_INVALID_PARAM", "The transaction id is too long")
    if "\0" in transaction_id or not _is_text(transaction_id):
        raise RequestRefused(400, "M_INVALID_PARAM", "The transaction id is malformed")
    if not isinstance(content, dict):
        raise RequestRefused(400, "M_BAD_JSON", "A transaction is a JSON object")
    if content.get("origin", origin) != origin:
        raise RequestRefused(403, "M_FORBIDDEN", "The transaction is of another server")
    pdus = _array(content, "pdus", MAX_PDUS)
    edus = _array(content, "edus", MAX_EDUS)
    by_room: dict[str, list[RawPdu]] = {}
    for pdu in pdus:
        room_id = pdu.get("room_id") if isinstance(pdu, dict) else None
        # A create event of version 12 has no room id; it is never sent to a server outside.
        if isinstance(room_id, str) and _is_text(room_id):
            text = json.dumps(pdu, ensure_ascii=False, separators=(",", ":"))
            by_room.setdefault(room_id, []).append(RawPdu(pdu, text))
    return Transaction(transaction_id, by_room, len(edus))


def _array(content: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    value = content.get(name, [])
    if not isinstance(value, list):
        raise RequestRefused(400, "M_BAD_JSON", f"`{name}` is not an array")
    if len(value) > limit:
        raise RequestRefused(
            400, "M_TOO_LARGE", f"A transaction has at most {limit} {name}, not {len(value)}"
        )
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value
