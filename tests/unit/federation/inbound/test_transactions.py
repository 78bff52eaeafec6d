"""The limits and the shape of transactions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from federation.inbound import RequestRefused, parse_transaction


def test_pdus_by_room() -> None:
    pdus = [{"room_id": "!a:x", "n": 1}, {"room_id": "!b:x"}, {"room_id": "!a:x", "n": 2}]
    parsed = parse_transaction("t", {"origin": "x", "pdus": pdus, "edus": [{}]}, "x")
    assert [raw.pdu["n"] for raw in parsed.pdus["!a:x"]] == [1, 2]
    assert parsed.edus == 1
    for room in parsed.pdus.values():
        assert all(json.loads(raw.json_text) == raw.pdu for raw in room)


def test_what_is_no_event_of_a_room_is_left_out() -> None:
    pdus = [7, None, [], {}, {"room_id": 7}, {"room_id": "!\0:x"}, {"room_id": "!\ud800:x"}]
    assert parse_transaction("t", {"pdus": pdus}, "x").pdus == {}


def test_the_limits_themselves_are_allowed() -> None:
    parsed = parse_transaction(
        "t" * 255, {"pdus": [{"room_id": "!a:x"}] * 50, "edus": [{}] * 100}, "x"
    )
    assert len(parsed.pdus["!a:x"]) == 50


@pytest.mark.parametrize(
    ("transaction_id", "content", "status"),
    [
        ("t", {"pdus": [{}] * 51}, 400),
        ("t", {"edus": [{}] * 101}, 400),
        ("t", {"pdus": {}}, 400),
        ("t", {"edus": "x"}, 400),
        ("t", [], 400),
        ("t", None, 400),
        ("t", {"origin": "y"}, 403),
        ("", {}, 400),
        ("t" * 256, {}, 400),
        ("\0", {}, 400),
        ("\ud800", {}, 400),
    ],
)
def test_refused(transaction_id: str, content: Any, status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_transaction(transaction_id, content, "x")
    assert refused.value.status == status
