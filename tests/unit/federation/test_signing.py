import os
import pickle
import stat
from io import StringIO

import pytest
import signedjson.key
import signedjson.sign
import unpaddedbase64
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import (
    InvalidEvent,
    InvalidIdentifier,
    InvalidJson,
    InvalidSignature,
    InvalidSigningKey,
)
from federation.events import Event
from federation.room_versions import ROOM_VERSIONS
from federation.signing import (
    SigningKey,
    add_signature,
    decode_base64,
    encode_base64,
    generate_signing_key,
    is_valid_signature,
    load_signing_key,
    random_localpart,
    required_signers,
    sign_event,
    sign_json,
    verify_signed_json,
    write_signing_key,
)

# Appendices, "Cryptographic Test Vectors".
SEED_BASE64 = "YJDBA9Xnr2sVqXD9Vj7XVUnmFZcZrlw8Md7kMW+3XA1"
KEY = SigningKey("1", decode_base64(SEED_BASE64))
V1 = ROOM_VERSIONS["1"]


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        (
            {},
            "K8280/U9SSy9IVtjBuVeLr+HpOB4BQFWbg+UZaADMtTdGYI7Geitb76LTrr5QV/7Xg4ahLwYGYZzuHGZKM5ZAQ",
        ),
        (
            {"one": 1, "two": "Two"},
            "KqmLSbO39/Bzb0QIYE82zqLwsA+PDzYIpIRA2sRQ4sL53+sN6/fpNSoqE7BP7vBZhG6kYdD13EIMJpvhJI+6Bw",
        ),
    ],
)
def test_json_signing_vectors(value, signature):
    signed = sign_json(value, "domain", KEY)
    assert signed == {**value, "signatures": {"domain": {"ed25519:1": signature}}}
    verify_signed_json(signed, "domain", KEY.verify_key, "ed25519:1")


def test_event_signing_vector_of_a_minimal_event():
    event = {
        "room_id": "!x:domain",
        "sender": "@a:domain",
        "origin": "domain",
        "origin_server_ts": 1000000,
        "signatures": {},
        "hashes": {},
        "type": "X",
        "content": {},
        "prev_events": [],
        "auth_events": [],
        "depth": 3,
        "unsigned": {"age_ts": 1000000},
    }
    assert sign_event(event, V1, "domain", KEY) == {
        **event,
        "hashes": {"sha256": "5jM4wQpv6lnBo7CLIghJuHdW+s2CMBJPUOGOC89ncos"},
        "signatures": {
            "domain": {
                "ed25519:1": (
                    "KxwGjPSDEtvnFgU00fwFz+l6d2pJM6XBIaMEn81SXPTRl16AqLAYqfIReFGZlHi5KLjAWbOoMszkwsQma"
                    "+lYAg"
                )
            }
        },
    }


def test_event_signing_vector_of_an_event_with_redactable_content():
    event = {
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
    assert sign_event(event, V1, "domain", KEY) == {
        **event,
        "hashes": {"sha256": "onLKD1bGljeBWQhWZ1kaP9SorVmRQNdN5aM2JYU2n/g"},
        "signatures": {
            "domain": {
                "ed25519:1": (
                    "Wm+VzmOUOz08Ds+0NTWb1d4CZrVsJSikkeRxh6aCcUwu6pNC78FunoD7KNWzqFn241eYHYMGCA5McEiVP"
                    "dhzBA"
                )
            }
        },
    }


def test_signing_keeps_unsigned_and_other_signatures():
    value = {"a": 1, "unsigned": {"b": 2}, "signatures": {"other": {"ed25519:x": "sig"}}}
    signed = sign_json(value, "domain", KEY)
    assert signed["unsigned"] == {"b": 2}
    assert signed["signatures"]["other"] == {"ed25519:x": "sig"}
    assert "domain" not in value["signatures"]
    signedjson.sign.verify_signed_json(
        signed,
        "domain",
        signedjson.key.decode_verify_key_bytes("ed25519:1", KEY.verify_key),
    )
    again = sign_json(signed, "domain", SigningKey("2", bytes(32)))
    assert set(again["signatures"]["domain"]) == {"ed25519:1", "ed25519:2"}
    verify_signed_json(again, "domain", KEY.verify_key, "ed25519:1")


@pytest.mark.parametrize("junk", [None, 5, "text", [], {"domain": 5}])
def test_what_a_resident_put_in_signatures_and_hashes_is_no_obstacle(junk):
    event = {"type": "X", "content": {}, "signatures": junk, "hashes": junk}
    signed = sign_event(event, ROOM_VERSIONS["10"], "domain", KEY)
    assert list(signed["hashes"]) == ["sha256"]
    assert list(signed["signatures"]["domain"]) == ["ed25519:1"]


def test_a_second_server_can_sign_an_event():
    event = sign_event({"type": "X", "content": {"a": 1}}, ROOM_VERSIONS["10"], "one", KEY)
    both = add_signature(event, ROOM_VERSIONS["10"], "two", KEY)
    assert both["hashes"] == event["hashes"]
    assert both["signatures"]["one"] == event["signatures"]["one"]
    # Both sign the same bytes with the same key.
    assert both["signatures"]["two"] == event["signatures"]["one"]


def test_what_has_no_canonical_json_is_not_signed():
    with pytest.raises(InvalidJson):
        sign_json({"a": "\ud800"}, "domain", KEY)
    with pytest.raises(InvalidEvent):
        sign_event({"type": "\ud800", "content": {}}, V1, "domain", KEY)
    with pytest.raises(InvalidEvent):
        add_signature({"type": "\ud800", "content": {}}, V1, "domain", KEY)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda signed: signed.update(a=2),
        lambda signed: signed.pop("signatures"),
        lambda signed: signed.update(signatures=5),
        lambda signed: signed.update(signatures={"domain": None}),
        lambda signed: signed.update(signatures={"other": signed["signatures"]["domain"]}),
        lambda signed: signed["signatures"]["domain"].clear(),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": 7}),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": ""}),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": "é"}),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": "A"}),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": "A" * 86}),
        lambda signed: signed["signatures"]["domain"].update({"ed25519:1": "A" * 200}),
        lambda signed: signed.update(b="\ud800"),
    ],
)
def test_bad_signatures_are_refused(spoil):
    signed = sign_json({"a": 1}, "domain", KEY)
    spoil(signed)
    with pytest.raises(InvalidSignature, match="domain"):
        verify_signed_json(signed, "domain", KEY.verify_key, "ed25519:1")


def test_a_signature_counts_for_its_key_only():
    signed = sign_json({"a": 1}, "domain", KEY)
    with pytest.raises(InvalidSignature):
        verify_signed_json(signed, "domain", SigningKey("1", bytes(32)).verify_key, "ed25519:1")
    with pytest.raises(InvalidSignature):
        verify_signed_json(signed, "domain", KEY.verify_key, "ed25519:2")
    signature = signed["signatures"]["domain"]["ed25519:1"]
    assert not is_valid_signature(b'{"a":1}', signature, b"too short")
    assert is_valid_signature(b'{"a":1}', signature, KEY.verify_key)


# Key files.


def test_generated_keys_differ_and_keep_their_secret():
    one, two = generate_signing_key(), generate_signing_key()
    assert one.seed != two.seed
    assert one.key_id == f"{one.alg}:{one.version}"
    assert one.key_id.startswith("ed25519:a_")
    assert encode_base64(one.seed) not in repr(one)
    assert repr(one.seed) not in repr(one)
    assert one.verify_key_base64 == encode_base64(one.verify_key)
    assert pickle.loads(pickle.dumps(one)) == one


def test_key_files_are_those_of_signedjson(tmp_path):
    path = tmp_path / "signing.key"
    write_signing_key(path, KEY)
    assert path.read_text() == f"ed25519 1 {encode_base64(KEY.seed)}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (read,) = signedjson.key.read_signing_keys(StringIO(path.read_text()))
    assert read.encode() == KEY.seed
    assert load_signing_key(path) == KEY
    assert load_signing_key(str(path)).verify_key == KEY.verify_key


def test_a_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "signing.key"
    write_signing_key(path, KEY)
    with pytest.raises(InvalidSigningKey, match="exists already"):
        write_signing_key(path, generate_signing_key())
    assert load_signing_key(path) == KEY


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "ed25519 1",
        f"rsa 1 {SEED_BASE64}",
        "ed25519 1 tooshort",
        f"ed25519 1 {SEED_BASE64} more",
        "ed25519 1 é",
        "\0",
    ],
)
def test_bad_key_files_are_refused_without_showing_them(tmp_path, content):
    path = tmp_path / "signing.key"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidSigningKey, match=r"signing\.key") as caught:
        load_signing_key(path)
    assert SEED_BASE64 not in str(caught.value)


def test_missing_key_files_and_directories_are_named(tmp_path):
    with pytest.raises(InvalidSigningKey, match="No such file"):
        load_signing_key(tmp_path / "none")
    with pytest.raises(InvalidSigningKey, match="No such file"):
        write_signing_key(os.path.join(tmp_path, "none", "signing.key"), KEY)
    with pytest.raises(InvalidSigningKey, match="cannot be read"):
        load_signing_key(tmp_path)


def test_blank_lines_and_further_keys_in_a_key_file(tmp_path):
    path = tmp_path / "signing.key"
    path.write_text(f"\ned25519 1 {SEED_BASE64}\ned25519 old {encode_base64(bytes(32))}\n")
    assert load_signing_key(path) == KEY


# Base64.


@settings(deadline=None)
@given(st.binary())
def test_base64_is_read_in_both_alphabets_padded_or_not(data):
    text = encode_base64(data)
    assert text == unpaddedbase64.encode_base64(data)
    urlsafe = unpaddedbase64.encode_base64(data, urlsafe=True)
    padding = "=" * (-len(text) % 4)
    for form in (text, text + padding, urlsafe, urlsafe + padding):
        assert decode_base64(form) == data


@settings(deadline=None)
@given(st.text(st.sampled_from("AQgw+/-_=")) | st.text())
def test_base64_is_as_tolerant_as_the_library(text):
    try:
        expected = unpaddedbase64.decode_base64(text)
    except ValueError:
        expected = None
    try:
        decoded = decode_base64(text)
    except ValueError:
        decoded = None
    assert decoded == expected


# Who must have signed.


def event_of(version, sender="@a:sender.example", event_type="m.room.message", **fields):
    pdu = {
        "type": event_type,
        "sender": sender,
        "content": {},
        "room_id": "!r:creator.example",
        "event_id": "$e:event.example",
        **fields,
    }
    return Event.from_pdu(pdu, version)


@pytest.mark.parametrize("version", [str(number) for number in range(1, 13)])
def test_the_servers_of_the_sender_and_in_versions_1_and_2_of_the_event_id(version):
    of_event_id = {"event.example"} if version in ("1", "2") else set()
    assert required_signers(event_of(version)) == {"sender.example"} | of_event_id


def test_ports_belong_to_the_server_name():
    assert required_signers(event_of("10", sender="@a:[::1]:8448")) == {"[::1]:8448"}


@pytest.mark.parametrize("version", ["1", "2", "3", "7", "8", "9", "10", "11", "12"])
def test_third_party_invites_need_no_signature_of_the_sender(version):
    def signers(content, event_type="m.room.member"):
        return required_signers(event_of(version, event_type=event_type, content=content))

    of_event_id = {"event.example"} if version in ("1", "2") else set()
    with_sender = of_event_id | {"sender.example"}
    assert signers({"membership": "invite", "third_party_invite": {}}) == of_event_id
    assert signers({"membership": "invite"}) == with_sender
    assert signers({"membership": "join", "third_party_invite": {}}) == with_sender
    assert signers({"membership": "invite", "third_party_invite": {}}, "other") == with_sender


@pytest.mark.parametrize("number", range(3, 13))
def test_restricted_joins_need_the_authorising_server_from_version_8(number):
    def signers(membership, user="@b:authorising.example", event_type="m.room.member"):
        content = {"membership": membership, "join_authorised_via_users_server": user}
        return required_signers(event_of(str(number), event_type=event_type, content=content))

    both = {"sender.example", "authorising.example"}
    assert signers("join") == (both if number >= 8 else {"sender.example"})
    assert signers("leave") == {"sender.example"}
    assert signers("join", event_type="m.room.message") == {"sender.example"}
    assert signers("join", user="@b:sender.example") == {"sender.example"}


@pytest.mark.parametrize("user", [None, 5, "", "b", ["@b:x"], {}])
def test_a_malformed_authorising_user_is_refused(user):
    content = {"membership": "join", "join_authorised_via_users_server": user}
    with pytest.raises(InvalidIdentifier):
        required_signers(event_of("10", event_type="m.room.member", content=content))


def test_random_localparts_differ():
    parts = {random_localpart() for _ in range(100)}
    assert len(parts) == 100
    assert all(part.isalnum() for part in parts)
