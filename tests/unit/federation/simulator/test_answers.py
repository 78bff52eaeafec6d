from __future__ import annotations

import json

from federation.simulator import lies
from federation.simulator.answers import Answer


def body(answer):
    return b"".join(answer.chunks())


def test_the_body_is_the_object_and_its_size_is_known():
    answer = Answer.of(number=1, text="ü", empty=[], many=[{"a": 1}, "$x"])
    assert json.loads(body(answer)) == {
        "number": 1,
        "text": "ü",
        "empty": [],
        "many": [{"a": 1}, "$x"],
    }
    assert answer.size() == len(body(answer))
    assert body(Answer()) == b"{}"
    assert Answer().size() == 2


def test_a_large_body_comes_in_pieces():
    answer = Answer({"pdus": [b'"%0500d"' % number for number in range(3000)]})
    pieces = list(answer.chunks())
    assert len(pieces) > 5
    assert max(map(len, pieces)) < 200_000
    assert answer.size() == sum(map(len, pieces))
    assert len(json.loads(b"".join(pieces))["pdus"]) == 3000


def test_every_lie_changes_the_answer_and_keeps_the_honest_one():
    pdu = {
        "content": {},
        "depth": 5,
        "room_id": "!a:b",
        "sender": "@a:b",
        "signatures": {"b": {"ed25519:1": "xyz"}},
    }
    arguments = {
        "extra": {"items": ["$x"]},
        "other_room": {"room_id": "!other:b"},
        "only": {"count": 1},
        "set_field": {"name": "pdus", "value": 7},
        "remove_field": {"name": "pdus"},
        "deep_nesting": {"name": "nested", "levels": 10},
    }
    for name, lie in lies.LIES.items():
        honest = Answer.of(pdus=[pdu, {**pdu, "depth": 6}])
        given = body(honest)
        how = arguments.get(name, {})
        if "name" not in how:
            how = {"field": "pdus", **how}
        told = lie(**how)(honest)
        assert body(told) != given, name
        assert body(honest) == given, name
        json.loads(body(told))
        assert told.size() == len(body(told)), name


def test_leaving_out_can_be_about_some_elements():
    answer = Answer.of(pdu_ids=["$a1", "$b1", "$b2", "$b3"])
    told = lies.leave_out("pdu_ids", 2, containing="$b")(answer)
    assert json.loads(body(told)) == {"pdu_ids": ["$a1", "$b3"]}
