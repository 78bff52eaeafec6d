"""Lies a resident can be told to tell: functions from an honest answer to another one.

`field` names an array of the answer: `pdus`, `auth_chain`, `pdu_ids`, `auth_chain_ids`, `state`,
`events`. Lies about single events strike the first `count` of them that fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from federation.canonical_json import encode
from federation.simulator.answers import Answer

Lie = Callable[[Answer], Answer]
_Change = Callable[[dict[str, Any]], None]


def leave_out(field: str, count: int = 1, *, containing: str = "") -> Lie:
    """Keep back `count` elements, of those with `containing` in their JSON."""

    def tell(answer: Answer) -> Answer:
        kept = []
        left = count
        for item in answer.items(field):
            if left and containing.encode() in item:
                left -= 1
            else:
                kept.append(item)
        return answer.with_field(field, kept)

    return tell


def only(field: str, count: int) -> Lie:
    """Give the first `count` elements alone."""
    return lambda answer: answer.with_field(field, answer.items(field)[:count])


def wrong_hashes(field: str, count: int = 1) -> Lie:
    """Change what the content hash alone covers: ids and signatures stay right."""
    return _change(field, count, lambda pdu: pdu["content"].update({"org.example.forged": True}))


def bad_signatures(field: str, count: int = 1) -> Lie:
    """Replace signatures by wrong ones: ids and content hashes stay right."""

    def forge(pdu: dict[str, Any]) -> None:
        pdu["signatures"] = {
            server: dict.fromkeys(keys, "A" * 86) for server, keys in pdu["signatures"].items()
        }

    return _change(field, count, forge)


def unknown_keys(field: str, count: int = 1) -> Lie:
    """Say that signatures were made with keys that nobody has: event ids stay right."""

    def rename(pdu: dict[str, Any]) -> None:
        pdu["signatures"] = {
            server: {"ed25519:nobodys": next(iter(keys.values()))}
            for server, keys in pdu["signatures"].items()
        }

    return _change(field, count, rename)


def no_signatures(field: str, count: int = 1) -> Lie:
    """Leave signatures out."""
    return _change(field, count, lambda pdu: pdu.update(signatures={}))


def other_ids(field: str, count: int = 1) -> Lie:
    """Change what the event id is made of: these are events nobody asked for, badly signed."""
    return _change(field, count, lambda pdu: pdu.update(depth=pdu["depth"] + 1000))


def other_room(field: str, room_id: str, count: int = 1) -> Lie:
    """Say that events are of another room."""
    return _change(field, count, lambda pdu: pdu.update(room_id=room_id))


def floats(field: str, count: int = 1) -> Lie:
    """Put a float into events, which room versions from 6 on do not allow."""
    return _change(field, count, lambda pdu: pdu["content"].update({"org.example.float": 1.5}))


def large_integers(field: str, count: int = 1) -> Lie:
    """Put an integer beyond 2**53 into events."""
    return _change(field, count, lambda pdu: pdu["content"].update({"org.example.big": 2**60}))


def huge_strings(field: str, length: int = 70_000, count: int = 1) -> Lie:
    """Make events larger than an event may be."""
    return _change(
        field, count, lambda pdu: pdu["content"].update({"org.example.huge": "x" * length})
    )


def missing_keys(field: str, key: str = "sender", count: int = 1) -> Lie:
    """Leave a top-level key of events out."""

    def forge(pdu: dict[str, Any]) -> None:
        pdu.pop(key, None)

    return _change(field, count, forge)


def duplicates(field: str, count: int = 1) -> Lie:
    """Give elements twice."""
    return lambda answer: answer.with_field(
        field, answer.items(field) + answer.items(field)[:count]
    )


def extra(field: str, items: Iterable[bytes | str | Mapping[str, Any]]) -> Lie:
    """Add elements: JSON as bytes, ids as strings, or PDUs."""
    added = [item if isinstance(item, bytes) else encode(item) for item in items]
    return lambda answer: answer.with_field(field, answer.items(field) + added)


def unknown_ids(field: str, count: int = 1) -> Lie:
    """Add ids of events that do not exist."""
    return extra(field, [f"$unknown{number:036}" for number in range(count)])


def not_events(field: str) -> Lie:
    """Add elements that are no events at all."""
    return extra(field, [b"null", b"7", b'"text"', b"[]", b"{}"])


def set_field(name: str, value: Any) -> Lie:
    """Give a field another value, or add one; bytes are sent as they are, JSON or not."""
    sent = value if isinstance(value, bytes) else encode(value)
    return lambda answer: answer.with_field(name, sent)


def remove_field(name: str) -> Lie:
    """Leave a field out."""
    return lambda answer: Answer(
        {key: value for key, value in answer.fields.items() if key != name}, answer.status
    )


def deep_nesting(name: str, levels: int = 100_000) -> Lie:
    """Add a field that is nested absurdly."""
    return set_field(name, b"[" * levels + b"]" * levels)


LIES: Mapping[str, Callable[..., Lie]] = {
    lie.__name__: lie
    for lie in (
        leave_out,
        only,
        wrong_hashes,
        bad_signatures,
        no_signatures,
        other_ids,
        other_room,
        floats,
        large_integers,
        huge_strings,
        missing_keys,
        duplicates,
        extra,
        unknown_ids,
        not_events,
        set_field,
        remove_field,
        deep_nesting,
    )
}
"""Every lie by its name, for those that ask over HTTP."""


def _change(field: str, count: int, change: _Change) -> Lie:
    def tell(answer: Answer) -> Answer:
        items = list(answer.items(field))
        for position in range(min(count, len(items))):
            pdu = json.loads(items[position])
            change(pdu)
            items[position] = encode(pdu)
        return answer.with_field(field, items)

    return tell
