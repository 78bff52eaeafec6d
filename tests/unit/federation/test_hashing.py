import base64
import hashlib

import pytest

from federation.errors import InvalidEvent
from federation.hashing import (
    compute_event_id,
    content_hash,
    essential_part,
    event_id_of_hash,
    hashed_content,
    reference_hash,
)
from federation.room_versions import ROOM_VERSIONS

PDU = {
    "room_id": "!x:domain",
    "sender": "@a:domain",
    "origin": "domain",
    "origin_server_ts": 1000000,
    "signatures": {"domain": {"ed25519:1": "abc"}},
    "hashes": {"sha256": "5jM4wQpv6lnBo7CLIghJuHdW+s2CMBJPUOGOC89ncos"},
    "type": "X",
    "content": {"body": "é"},
    "prev_events": [],
    "auth_events": [],
    "depth": 3,
    "unsigned": {"age_ts": 1000000},
}


def unpadded(digest, urlsafe=False):
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    return encode(digest).decode().rstrip("=")


def test_content_hash_of_the_specification():
    # Appendices, "Event Signing": the minimally-sized event and the one with redactable content.
    assert unpadded(content_hash({**PDU, "content": {}})) == PDU["hashes"]["sha256"]
    message = {
        "content": {"body": "Here is the message content"},
        "event_id": "$0:domain",
        "origin": "domain",
        "origin_server_ts": 1000000,
        "type": "m.room.message",
        "room_id": "!r:domain",
        "sender": "@u:domain",
        "signatures": {},
        "unsigned": {"age_ts": 1000000},
    }
    assert unpadded(content_hash(message)) == "onLKD1bGljeBWQhWZ1kaP9SorVmRQNdN5aM2JYU2n/g"


@pytest.mark.parametrize("key", ["unsigned", "signatures", "hashes"])
def test_content_hash_leaves_out(key):
    without = {name: value for name, value in PDU.items() if name != key}
    assert content_hash(without) == content_hash(PDU)
    assert key not in hashed_content(PDU)


@pytest.mark.parametrize("key", ["content", "origin", "depth", "type", "new"])
def test_content_hash_covers(key):
    assert content_hash({**PDU, key: 7}) != content_hash(PDU)


def test_reference_hash_covers_the_redacted_form():
    version = ROOM_VERSIONS["4"]
    expected = (
        '{"auth_events":[],"content":{},"depth":3,"hashes":{"sha256":'
        '"5jM4wQpv6lnBo7CLIghJuHdW+s2CMBJPUOGOC89ncos"},"origin":"domain",'
        '"origin_server_ts":1000000,"prev_events":[],"room_id":"!x:domain",'
        '"sender":"@a:domain","type":"X"}'
    )
    assert reference_hash(PDU, version) == hashlib.sha256(expected.encode()).digest()
    assert not {"signatures", "unsigned"} & essential_part(PDU, version).keys()
    # Version 11 no longer keeps `origin`.
    assert reference_hash(PDU, ROOM_VERSIONS["11"]) == (
        hashlib.sha256(expected.replace('"origin":"domain",', "").encode()).digest()
    )


def test_event_ids_by_format():
    for name in ("1", "2"):
        assert compute_event_id({**PDU, "event_id": "$a:b"}, ROOM_VERSIONS[name]) == "$a:b"
    # This event's hash has both of the characters that differ between the alphabets.
    pdu = next(
        pdu
        for pdu in ({**PDU, "depth": depth} for depth in range(10_000))
        if {"+", "/"} <= set(unpadded(reference_hash(pdu, ROOM_VERSIONS["4"])))
    )
    digest = reference_hash(pdu, ROOM_VERSIONS["4"])
    assert compute_event_id(pdu, ROOM_VERSIONS["3"]) == "$" + unpadded(digest)
    for number in range(4, 11):
        version = ROOM_VERSIONS[str(number)]
        assert compute_event_id(pdu, version) == "$" + unpadded(digest, urlsafe=True)
    for name in ("11", "12"):
        digest = reference_hash(pdu, ROOM_VERSIONS[name])
        assert compute_event_id(pdu, ROOM_VERSIONS[name]) == "$" + unpadded(digest, urlsafe=True)


@pytest.mark.parametrize("name", ["3", "4", "12"])
def test_event_ids_have_44_characters(name):
    assert len(event_id_of_hash(bytes(32), ROOM_VERSIONS[name])) == 44
    assert event_id_of_hash(bytes(32), ROOM_VERSIONS[name]) == "$" + "A" * 43


@pytest.mark.parametrize("event_id", [None, 5, ["$a:b"]])
def test_versions_1_and_2_need_an_event_id(event_id):
    with pytest.raises(InvalidEvent, match="event_id"):
        compute_event_id({**PDU, "event_id": event_id}, ROOM_VERSIONS["1"])


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_what_cannot_be_encoded_is_invalid(value):
    with pytest.raises(InvalidEvent):
        content_hash({**PDU, "x": value})
    with pytest.raises(InvalidEvent):
        compute_event_id({**PDU, "depth": value}, ROOM_VERSIONS["5"])
