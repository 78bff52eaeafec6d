"""Events as rows."""

from __future__ import annotations

import pytest

from federation.events import Event
from storage import event_rows
from storage.bulk import is_storable


def _event(room_version: str = "10", **fields) -> Event:
    pdu = {
        "type": "m.room.message",
        "sender": "@a:b",
        "room_id": "!r:b",
        "content": {},
        "origin_server_ts": 3,
        "depth": 4,
        **fields,
    }
    return Event.from_pdu(pdu, room_version, event_id="$e")


@pytest.mark.parametrize(
    ("room_version", "number"), [("1", 1), ("2", 1), ("3", 2), ("4", 3), ("11", 3), ("12", 4)]
)
def test_format_versions(room_version: str, number: int) -> None:
    assert event_rows.json_row(_event(room_version), "{}")[4] == number


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"membership": "join", "displayname": "A"}, ("join", "A", None)),
        ({"membership": "leave", "displayname": None, "avatar_url": 5}, ("leave", None, None)),
        ({"membership": "ban", "displayname": "\ud800", "avatar_url": "é"}, ("ban", None, "é")),
    ],
)
def test_memberships(content: dict, expected: tuple) -> None:
    member = _event(type="m.room.member", state_key="@u:b", content=content)
    row = event_rows.membership_row(member, 9)
    assert row is not None
    assert row[:4] == ("$e", "@u:b", "@a:b", "!r:b")
    assert row[4:] == (*expected, 9)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "m.room.member", "content": {"membership": "join"}},
        {"type": "m.room.member", "state_key": "@u:b"},
        {"type": "m.room.member", "state_key": "@u:b", "content": {"membership": ["join"]}},
        {"type": "m.room.topic", "state_key": "", "content": {"membership": "join"}},
    ],
)
def test_what_is_no_membership(fields: dict) -> None:
    assert event_rows.membership_row(_event(**fields), 9) is None


def test_redactions_name_their_target_where_the_version_says() -> None:
    old = {"type": "m.room.redaction", "redacts": "$x"}
    new = {"type": "m.room.redaction", "content": {"redacts": "$y"}}
    assert event_rows.redaction_row(_event("10", **old), 7) == ("$e", "$x", 7)
    assert event_rows.redaction_row(_event("11", **new), 7) == ("$e", "$y", 7)
    assert event_rows.redaction_row(_event("11", **old), 7) is None
    assert event_rows.redaction_row(_event("10", redacts="$x"), 7) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"type": "a\0"}, "its type"),
        ({"state_key": "\ud800"}, "its state_key"),
        ({"sender": "\0"}, "its sender"),
        ({"room_id": "!\0"}, "its room_id"),
        ({"auth_events": ["$\0"]}, "refers to an event id"),
        # In JSON text, these are written as escapes and harmless.
        ({"content": {"a": "\0 é"}}, None),
    ],
)
def test_unstorable_events(fields: dict, reason: str | None) -> None:
    found = event_rows.unstorable_reason(_event(**fields))
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found


def test_json_text_that_cannot_be_encoded() -> None:
    pdu = {"type": "t", "sender": "@a:b", "room_id": "!r:b", "content": {}}
    event = Event.from_pdu(pdu, "10", event_id="$e", json_text='{"a":"\ud800"}')
    reason = event_rows.unstorable_reason(event)
    assert reason is not None
    assert "its JSON" in reason


def test_storable_text() -> None:
    assert is_storable("plain")
    assert is_storable("é \U0001f600")
    assert not is_storable("a\0b")
    assert not is_storable("\ud83d")
