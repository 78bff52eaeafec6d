import copy
import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.canonical_json import encode
from federation.checks import (
    MAX_JSON_TEXT,
    MAX_KEYS_PER_SIGNER,
    MAX_PDU_BYTES,
    Outcome,
    PduCheck,
    VerifyKey,
    check_pdus,
    keys_needed,
)
from federation.errors import UnknownRoomVersion
from federation.hashing import compute_event_id
from federation.redaction import redact
from federation.room_versions import ROOM_VERSIONS, EventFormat
from federation.signing import (
    SigningKey,
    add_signature,
    decode_base64,
    encode_base64,
    required_signers_of,
    sign_event,
)

SERVER = "example.com"
KEY = SigningKey("a_1", bytes(range(32)))
OTHER_KEY = SigningKey("a_2", bytes(range(1, 33)))
NOW = 1_700_000_000_000
VERSIONS = list(ROOM_VERSIONS)
LENIENT = VERSIONS[:5]
STRICT = VERSIONS[5:]


def known(key=KEY, server_name=SERVER, valid_until_ts=NOW + 1):
    return {(server_name, key.key_id): VerifyKey(key.verify_key, valid_until_ts)}


def room_id_of(version):
    return "!" + "r" * 43 if version == "12" else "!room:example.com"


def unsigned_pdu(version, **fields):
    """A membership event in the format of the room version, without hashes and signatures."""
    references = ["$" + "e" * 43]
    pdu = {
        "type": "m.room.member",
        "state_key": "@alice:example.com",
        "sender": "@alice:example.com",
        "room_id": room_id_of(version),
        "content": {"membership": "join", "displayname": "Alice"},
        "auth_events": references,
        "prev_events": references,
        "depth": 12,
        "origin_server_ts": NOW,
        "unsigned": {"age": 5},
    }
    if ROOM_VERSIONS[version].event_format is EventFormat.V1:
        pdu["event_id"] = "$event:example.com"
        pdu["auth_events"] = pdu["prev_events"] = [["$a:example.com", {"sha256": "hash"}]]
    return {**pdu, **fields}


def signed_pdu(version, **fields):
    return sign_event(unsigned_pdu(version, **fields), ROOM_VERSIONS[version], SERVER, KEY)


def check(pdu, version, keys=None, room_id=None):
    text = pdu if isinstance(pdu, str) else json.dumps(pdu)
    keys = known() if keys is None else keys
    (result,) = check_pdus([text], version, room_id or room_id_of(version), keys)
    return result


def put(pdu, path, value):
    for step in path[:-1]:
        pdu = pdu[step]
    pdu[path[-1]] = value


def assert_dropped(result, *words):
    assert result.outcome is Outcome.DROPPED
    for word in words:
        assert word in result.reason
    assert "cannot be checked" not in result.reason


def assert_uncheckable(result, *words):
    assert result.outcome is Outcome.UNCHECKABLE
    assert result.event_id
    for word in words:
        assert word in result.reason


# The outcomes.


@pytest.mark.parametrize("version", VERSIONS)
def test_a_good_event_is_accepted(version):
    pdu = signed_pdu(version)
    event_id = compute_event_id(pdu, ROOM_VERSIONS[version])
    assert check(pdu, version) == PduCheck(Outcome.ACCEPTED, event_id, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_other_content_than_was_hashed_is_redacted(version):
    pdu = signed_pdu(version)
    event_id = check(pdu, version).event_id
    pdu["content"]["displayname"] = "Mallory"
    result = check(pdu, version)
    assert result.outcome is Outcome.REDACTED
    assert result.event_id == event_id
    assert "content hash" in result.reason
    # What another server had to redact comes to the same event.
    redacted = redact(pdu, ROOM_VERSIONS[version])
    assert check(redacted, version) == result


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "change",
    [
        {"content": {"membership": "ban", "displayname": "Alice"}},
        {"depth": 13},
        {"origin_server_ts": NOW - 1},
        {"state_key": "@bob:example.com"},
        {"type": "m.room.topic"},
        {"prev_events": []},
        {"auth_events": []},
        {"sender": "@bob:example.com"},
        {"hashes": {"sha256": encode_base64(bytes(32))}},
    ],
)
def test_a_change_to_what_is_signed_is_dropped(version, change):
    result = check({**signed_pdu(version), **change}, version)
    assert_dropped(result, "wrong signature", SERVER, KEY.key_id)
    assert result.event_id is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bad_signature_outweighs_a_bad_hash(version):
    pdu = signed_pdu(version)
    pdu["content"] = {"membership": "ban", "displayname": "Mallory"}
    assert_dropped(check(pdu, version), "signature")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("unsigned", [{}, {"age": 9}, {"x": 1.5}, {"y": 2**60}, None, 5, "text"])
def test_unsigned_is_nobodys_business(version, unsigned):
    pdu = {**signed_pdu(version), "unsigned": unsigned}
    assert check(pdu, version).outcome is Outcome.ACCEPTED


def test_results_come_in_the_order_of_the_texts():
    good, redacted, bad = signed_pdu("10"), signed_pdu("10"), signed_pdu("10")
    redacted["content"]["displayname"] = "Mallory"
    bad["depth"] = 0
    texts = [json.dumps(pdu) for pdu in (bad, good, redacted, good)] + ["nonsense"]
    outcomes = [r.outcome for r in check_pdus(texts, "10", room_id_of("10"), known())]
    assert outcomes == [
        Outcome.DROPPED,
        Outcome.ACCEPTED,
        Outcome.REDACTED,
        Outcome.ACCEPTED,
        Outcome.DROPPED,
    ]
    assert check_pdus([], "10", room_id_of("10"), {}) == []


def test_unknown_room_versions_are_the_callers_mistake():
    with pytest.raises(UnknownRoomVersion):
        check_pdus([], "13", "!r:x", {})


def test_it_runs_in_another_process():
    texts = [json.dumps(signed_pdu("10")), "nonsense"]
    arguments = (texts, "10", room_id_of("10"), known())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        results = pool.submit(check_pdus, *arguments).result()
    assert results == check_pdus(*arguments)
    assert results[0].outcome is Outcome.ACCEPTED
    assert pickle.loads(pickle.dumps(results)) == results


# The room.


@pytest.mark.parametrize("version", VERSIONS)
def test_events_of_another_room_are_dropped(version):
    result = check(signed_pdu(version, room_id="!other:example.com"), version)
    assert_dropped(result, "another room", "!other:example.com")


@pytest.mark.parametrize("room_id", [None, 5, "", [], "!room:example.com\n"])
def test_malformed_room_ids_are_dropped(room_id):
    assert_dropped(check(signed_pdu("10", room_id=room_id), "10"), "room")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_room_id_may_not_be_missing(version):
    pdu = unsigned_pdu(version)
    del pdu["room_id"]
    pdu = sign_event(pdu, ROOM_VERSIONS[version], SERVER, KEY)
    assert_dropped(check(pdu, version), "room_id is missing")


def create_event(version="12", **fields):
    pdu = unsigned_pdu(
        version, type="m.room.create", state_key="", auth_events=[], prev_events=[], **fields
    )
    del pdu["room_id"]
    return sign_event(pdu, ROOM_VERSIONS[version], SERVER, KEY)


def test_the_version_12_create_event_belongs_to_the_room_of_its_hash():
    pdu = create_event()
    event_id = compute_event_id(pdu, ROOM_VERSIONS["12"])
    accepted = check(pdu, "12", room_id="!" + event_id[1:])
    assert accepted == PduCheck(Outcome.ACCEPTED, event_id, "")
    assert_dropped(check(pdu, "12", room_id=room_id_of("12")), "another room", event_id[1:])
    # Claiming the room does not help.
    claiming = signed_pdu("12", type="m.room.create", state_key="")
    assert_dropped(check(claiming, "12"), "another room")
    # Other state keys of that type are events like any other.
    assert check(signed_pdu("12", type="m.room.create", state_key="x"), "12").outcome is (
        Outcome.ACCEPTED
    )
    assert_dropped(check(create_event("11"), "11"), "room_id is missing")


# Format.

NOT_A_STRING = [None, 5, True, 1.5, [], {}]
NOT_AN_INTEGER = [None, "5", True, 1.5, [], {}]
NOT_AN_OBJECT = [None, 5, "text", True, [], [{}]]
NOT_A_LIST = [None, 5, "$e", True, {}]


@pytest.mark.parametrize("version", ["1", "3", "6", "12"])
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("type", NOT_A_STRING),
        ("sender", NOT_A_STRING),
        ("state_key", NOT_A_STRING),
        ("depth", NOT_AN_INTEGER),
        ("origin_server_ts", NOT_AN_INTEGER),
        ("content", NOT_AN_OBJECT),
        ("hashes", NOT_AN_OBJECT),
        ("signatures", NOT_AN_OBJECT),
        ("auth_events", NOT_A_LIST),
        ("prev_events", NOT_A_LIST),
    ],
)
def test_wrong_types_are_dropped(version, field, values):
    for value in values:
        assert_dropped(check({**signed_pdu(version), field: value}, version))
        # The reason names the field, unless a float is what is wrong first.
        if type(value) is not float:
            assert_dropped(check({**signed_pdu(version), field: value}, version), field)


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_fields_are_dropped(version):
    pdu = signed_pdu(version)
    optional = {"state_key", "unsigned"}
    for field in pdu.keys() - optional:
        without = {key: value for key, value in pdu.items() if key != field}
        assert_dropped(check(without, version), field, "missing")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "t" * 256),
        ("type", "é" * 128),
        ("type", "a\0b"),
        ("state_key", "s" * 256),
        ("state_key", "\0"),
        ("sender", "@" + "a" * 250 + ":example.com"),
        ("sender", "@é" * 90 + ":example.com"),
        ("sender", "alice:example.com"),
        ("sender", "@alice"),
        ("sender", "@al\0ice:example.com"),
        ("sender", "@alice:exa_mple.com"),
        ("sender", "@alice:"),
        ("depth", -1),
        ("depth", 2**63),
        ("origin_server_ts", 2**63),
        ("origin_server_ts", -(2**64)),
        ("prev_events", ["$e"] * 21),
        ("auth_events", ["$e"] * 11),
        ("auth_events", ["e"]),
        ("auth_events", [""]),
        ("auth_events", [5]),
        ("auth_events", [None]),
        ("auth_events", [["$e", {}]]),
        ("prev_events", ["$" + "e" * 255]),
        ("hashes", {}),
        ("hashes", {"sha256": 5}),
        ("hashes", {"md5": "x"}),
        ("signatures", {SERVER: "text"}),
        ("signatures", {SERVER: {KEY.key_id: 5}}),
        ("signatures", {"other": None}),
        ("event_id", "$x:example.com"),
    ],
)
@pytest.mark.parametrize("version", ["3", "10"])
def test_other_violations_of_the_format_are_dropped(version, field, value):
    pdu = {**signed_pdu(version), field: value}
    assert_dropped(check(pdu, version), field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_id", 5),
        ("event_id", "event:example.com"),
        ("event_id", "$event"),
        ("event_id", "$event:"),
        ("event_id", "$" + "e" * 250 + ":example.com"),
        ("auth_events", ["$e:example.com"]),
        ("auth_events", [["$e:example.com"]]),
        ("auth_events", [["$e:example.com", {}, 1]]),
        ("auth_events", [["$e:example.com", "hash"]]),
        ("auth_events", [[5, {}]]),
        ("auth_events", [["$e:example.com", {}]] * 11),
        ("prev_events", [["$e:example.com", {}]] * 21),
    ],
)
@pytest.mark.parametrize("version", ["1", "2"])
def test_violations_of_the_oldest_format_are_dropped(version, field, value):
    assert_dropped(check({**signed_pdu(version), field: value}, version), field)


@pytest.mark.parametrize(
    "fields",
    [
        {"prev_events": ["$" + "e" * 43] * 20, "auth_events": ["$" + "e" * 43] * 10},
        {"type": "t" * 255, "state_key": "s" * 255},
        {"type": "", "state_key": ""},
        {"sender": "@Ü b/:example.com"},
        {"sender": "@:example.com"},
        {"depth": 0, "origin_server_ts": 0},
        {"depth": 2**53 - 1, "origin_server_ts": -5},
        {"unknown": {"key": [None]}},
    ],
)
def test_what_the_format_allows_is_accepted(fields):
    assert check(signed_pdu("10", **fields), "10").outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "5", '"text"', "{", "{}x", "NaN", "[" * 50_000, '{"a":' * 50_000,
     "\ud800", '{"a": NaN}', "{}", "\x00"],
)  # fmt: skip
@pytest.mark.parametrize("version", ["1", "12"])
def test_what_is_no_event_at_all_is_dropped(text, version):
    assert_dropped(check(text, version))


def test_text_of_the_wrong_type_takes_only_itself_down():
    good = json.dumps(signed_pdu("10"))
    results = check_pdus([None, good], "10", room_id_of("10"), known())  # type: ignore[list-item]
    assert [result.outcome for result in results] == [Outcome.DROPPED, Outcome.ACCEPTED]


@pytest.mark.parametrize("field", ["prev_events", "auth_events"])
@pytest.mark.parametrize("version", VERSIONS)
def test_references_that_no_database_can_hold_are_dropped(version, field):
    event_id = "$a\0b:example.com"
    is_pair = version in ("1", "2")
    reference = [event_id, {"sha256": "x"}] if is_pair else event_id
    assert_dropped(check(signed_pdu(version, **{field: [reference]}), version), field, "NUL")


@pytest.mark.parametrize("version", VERSIONS)
def test_lone_surrogates_are_dropped(version):
    for path in (("content", "\ud800"), ("hashes", "\ud800"), ("new",)):
        pdu = signed_pdu(version)
        put(pdu, path, "\ud800")
        assert_dropped(check(pdu, version), "surrogate")
    for field in ("type", "state_key", "sender", "room_id"):
        assert_dropped(check({**signed_pdu(version), field: "\ud800"}, version))


@pytest.mark.parametrize(
    "signatures",
    [
        {"\ud800": {"ed25519:1": "x"}},
        {"other.example": {"\ud800": "x"}},
        {"other.example": {"ed25519:1": "\ud800"}},
        {"other.example": {"ed25519:1": "é"}},
    ],
)
def test_signatures_are_ascii(signatures):
    pdu = signed_pdu("10")
    pdu["signatures"].update(signatures)
    assert_dropped(check(pdu, "10"), "signatures", "ASCII")


# Numbers.


@pytest.mark.parametrize("version", STRICT)
@pytest.mark.parametrize("value", [1.5, 1e10, -0.0, 2**53, -(2**53), 2**70])
@pytest.mark.parametrize("path", [("content", "x"), ("new",), ("hashes", "x"), ("content",)])
def test_strict_versions_drop_what_is_not_canonical(version, value, path):
    pdu = unsigned_pdu(version)
    if path == ("content",):
        pdu["content"]["deep"] = [{"deeper": value}]
    elif path == ("new",):
        pdu["new"] = value
    else:
        pdu.setdefault(path[0], {})[path[1]] = value
    hashes = pdu.get("hashes", {})
    pdu = sign_event(pdu, ROOM_VERSIONS[version], SERVER, KEY)
    pdu["hashes"].update(hashes)
    assert_dropped(check(pdu, version), "canonical JSON" if type(value) is int else "float")


@pytest.mark.parametrize("version", LENIENT)
@pytest.mark.parametrize("value", [1.5, 1e10, 1e16, 1.5e-7, -0.0, 2**53, -(2**63), 2**70])
def test_old_versions_accept_any_number(version, value):
    pdu = signed_pdu(version, content={"membership": "join", "x": [value]}, new=value)
    assert check(pdu, version).outcome is Outcome.ACCEPTED


@pytest.mark.parametrize("version", LENIENT)
def test_old_versions_allow_the_depth_of_a_64_bit_integer(version):
    assert check(signed_pdu(version, depth=2**63 - 1), version).outcome is Outcome.ACCEPTED


@pytest.mark.parametrize("version", STRICT)
def test_strict_versions_allow_the_depth_of_a_53_bit_integer(version):
    assert check(signed_pdu(version, depth=2**53 - 1), version).outcome is Outcome.ACCEPTED
    assert_dropped(check(signed_pdu(version, depth=2**53), version))


# Size.


@pytest.mark.parametrize("version", ["1", "10"])
@pytest.mark.parametrize("filling", ["a", "é", "\U0001f600", "\n", "\x01"])
def test_the_size_limit_is_exact(version, filling):
    def of_size(size):
        pdu = signed_pdu(version, content={"membership": "join", "x": "", "y": ""})
        del pdu["unsigned"]
        unit = len(encode(filling)) - 2
        count, rest = divmod(size - len(encode(pdu)), unit)
        pdu = signed_pdu(
            version, content={"membership": "join", "x": filling * count, "y": "a" * rest}
        )
        del pdu["unsigned"]
        assert len(encode(pdu)) == size
        return pdu

    fits = of_size(MAX_PDU_BYTES)
    assert check(fits, version).outcome is Outcome.ACCEPTED
    # What is added on the way, and how the text is written, does not count.
    with_unsigned = {**fits, "unsigned": {"prev_content": {"x": "a" * 60_000}}}
    assert check(json.dumps(with_unsigned, indent=1), version).outcome is Outcome.ACCEPTED
    assert_dropped(check(of_size(MAX_PDU_BYTES + 1), version), "65537 bytes", "65536")


def test_huge_signatures_count():
    pdu = signed_pdu("10")
    pdu["signatures"]["other.example"] = {"ed25519:x": "a" * MAX_PDU_BYTES}
    assert_dropped(check(pdu, "10"), "bytes")


def test_absurdly_long_texts_are_not_even_parsed():
    text = json.dumps(signed_pdu("10"))
    assert check(text + " " * (MAX_JSON_TEXT - len(text)), "10").outcome is Outcome.ACCEPTED
    assert_dropped(check(text + " " * MAX_JSON_TEXT, "10"), "characters")


# Signatures.


@pytest.mark.parametrize("version", VERSIONS)
def test_unsigned_events_are_dropped(version):
    pdu = signed_pdu(version)
    for signatures in ({}, {SERVER: {}}, {"other.example": pdu["signatures"][SERVER]}):
        result = check({**pdu, "signatures": signatures}, version)
        assert_dropped(result, "not signed by", SERVER)


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_keys_are_named(version):
    result = check(signed_pdu(version), version, keys={})
    assert_uncheckable(result, SERVER, KEY.key_id, "could not be had")
    other_server = known(server_name="other.example")
    assert_uncheckable(check(signed_pdu(version), version, keys=other_server), "could not be had")


@pytest.mark.parametrize("number", range(1, 13))
def test_keys_must_be_valid_at_the_time_of_the_event_from_version_5(number):
    version = str(number)
    pdu = signed_pdu(version)
    assert check(pdu, version, known(valid_until_ts=NOW)).outcome is Outcome.ACCEPTED
    expired = check(pdu, version, known(valid_until_ts=NOW - 1))
    if number >= 5:
        assert_uncheckable(expired, SERVER, KEY.key_id, "no longer valid")
    else:
        assert expired.outcome is Outcome.ACCEPTED


def test_one_known_signature_is_enough_and_unknown_ones_are_passed_over():
    pdu = signed_pdu("10")
    pdu["signatures"][SERVER] = {
        "ed25519:unknown": "nonsense",
        "rsa:1": "-",
        "policy": "",
        **pdu["signatures"][SERVER],
    }
    pdu["signatures"]["stranger.example"] = {"ed25519:1": "nonsense"}
    assert check(pdu, "10").outcome is Outcome.ACCEPTED


def test_expired_keys_are_passed_over():
    pdu = add_signature(signed_pdu("10"), ROOM_VERSIONS["10"], SERVER, OTHER_KEY)
    keys = known(valid_until_ts=NOW - 1) | known(OTHER_KEY)
    assert check(pdu, "10", keys).outcome is Outcome.ACCEPTED
    # Even when what was made with them is wrong.
    pdu["signatures"][SERVER][KEY.key_id] = "nonsense"
    assert check(pdu, "10", keys).outcome is Outcome.ACCEPTED


def test_all_signatures_with_known_keys_must_be_right():
    pdu = add_signature(signed_pdu("10"), ROOM_VERSIONS["10"], SERVER, OTHER_KEY)
    pdu["signatures"][SERVER][OTHER_KEY.key_id] = pdu["signatures"][SERVER][KEY.key_id]
    assert check(pdu, "10", known()).outcome is Outcome.ACCEPTED
    assert_dropped(check(pdu, "10", known() | known(OTHER_KEY)), OTHER_KEY.key_id)


def test_a_key_of_another_algorithm_never_counts():
    pdu = signed_pdu("10")
    signature = pdu["signatures"][SERVER].pop(KEY.key_id)
    pdu["signatures"][SERVER]["rsa:1"] = signature
    keys = {(SERVER, "rsa:1"): VerifyKey(KEY.verify_key, NOW)}
    assert_dropped(check(pdu, "10", keys), "not signed by", SERVER, "ed25519")


@pytest.mark.parametrize("key", [b"", b"short", bytes(31), bytes(33)])
def test_a_key_of_the_wrong_length_drops_the_event(key):
    keys = {(SERVER, KEY.key_id): VerifyKey(key, NOW)}
    assert_dropped(check(signed_pdu("10"), "10", keys), "wrong signature")


@pytest.mark.parametrize("version", ["1", "2"])
def test_old_versions_want_the_event_ids_server_too(version):
    pdu = signed_pdu(version, event_id="$event:other.example")
    assert_dropped(check(pdu, version), "not signed by", "other.example")
    both = add_signature(pdu, ROOM_VERSIONS[version], "other.example", OTHER_KEY)
    keys = known() | known(OTHER_KEY, "other.example")
    assert check(both, version, keys).outcome is Outcome.ACCEPTED
    assert_uncheckable(check(both, version), "other.example", "could not be had")


@pytest.mark.parametrize("number", range(3, 13))
def test_restricted_joins_want_the_authorising_server_from_version_8(number):
    version = str(number)
    content = {
        "membership": "join",
        "join_authorised_via_users_server": "@bob:other.example",
    }
    pdu = signed_pdu(version, content=content)
    alone = check(pdu, version)
    if number < 8:
        assert alone.outcome is Outcome.ACCEPTED
        return
    assert_dropped(alone, "not signed by", "other.example")
    both = add_signature(pdu, ROOM_VERSIONS[version], "other.example", OTHER_KEY)
    keys = known() | known(OTHER_KEY, "other.example")
    assert check(both, version, keys).outcome is Outcome.ACCEPTED
    only_other = {**both, "signatures": {"other.example": both["signatures"]["other.example"]}}
    assert_dropped(check(only_other, version, keys), "not signed by", SERVER)


@pytest.mark.parametrize("user", [None, 5, "bob", "@bob", {}])
def test_malformed_authorising_users_are_dropped(user):
    content = {"membership": "join", "join_authorised_via_users_server": user}
    assert_dropped(check(signed_pdu("10", content=content), "10"), "user id")


@pytest.mark.parametrize("version", VERSIONS)
def test_third_party_invites_may_come_from_any_server(version):
    content = {"membership": "invite", "third_party_invite": {"signed": {}}}
    pdu = unsigned_pdu(version, sender="@inviter:elsewhere.example", content=content)
    pdu = sign_event(pdu, ROOM_VERSIONS[version], SERVER, KEY)
    assert check(pdu, version).outcome is Outcome.ACCEPTED
    pdu["content"]["displayname"] = "Mallory"
    assert check(pdu, version).outcome is Outcome.REDACTED
    ordinary = unsigned_pdu(
        version, sender="@inviter:elsewhere.example", content={"membership": "invite"}
    )
    ordinary = sign_event(ordinary, ROOM_VERSIONS[version], SERVER, KEY)
    assert_dropped(check(ordinary, version), "not signed by", "elsewhere.example")


# Content hashes.


def test_hashes_are_compared_as_bytes():
    pdu = signed_pdu("10")
    digest = decode_base64(pdu["hashes"]["sha256"])

    def with_hash(text):
        return add_signature({**pdu, "hashes": {"sha256": text}}, ROOM_VERSIONS["10"], SERVER, KEY)

    for text in (encode_base64(digest) + "=", encode_base64(digest).replace("+", "-")):
        assert check(with_hash(text), "10").outcome is Outcome.ACCEPTED
    for text in ("", encode_base64(digest[:-1]), encode_base64(digest + b"x")):
        assert check(with_hash(text), "10").outcome is Outcome.REDACTED
    for text in ("é", "A", "AAAAA"):
        assert_dropped(check(with_hash(text), "10"), "hashes.sha256", "Base64")


# Anything at all.

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\0", "\ud800", "@a:example.com", "$e", "!r:example.com", "x" * 300]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TOP_LEVEL = [*signed_pdu("1"), "membership", "origin", "redacts", "new"]
CONTENT = ["membership", "third_party_invite", "join_authorised_via_users_server", "x"]
paths = (
    st.tuples(st.sampled_from(TOP_LEVEL))
    | st.tuples(st.just("content"), st.sampled_from(CONTENT))
    | st.tuples(st.just("hashes"), st.sampled_from(["sha256", "x"]))
    | st.tuples(st.just("signatures"), st.sampled_from([SERVER, "x"]))
    | st.tuples(st.just("signatures"), st.just(SERVER), st.sampled_from([KEY.key_id, "x"]))
    | st.tuples(st.sampled_from(["auth_events", "prev_events"]), st.just(0))
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), paths, json_values)
def test_a_spoiled_event_never_raises_and_is_never_accepted_with_other_content(
    version, path, value
):
    pdu = signed_pdu(version)
    original = copy.deepcopy(pdu)
    put(pdu, path, value)
    result = check(json.dumps(pdu), version)
    assert "cannot be checked" not in result.reason
    assert result.reason.isascii()
    assert len(result.reason) < 1000
    assert (result.reason == "") is (result.outcome is Outcome.ACCEPTED)
    if result.outcome is Outcome.ACCEPTED:
        for part in (original, pdu):
            part.pop("unsigned", None)
            part.pop("signatures")
        assert pdu == original
    elif result.outcome is Outcome.REDACTED:
        assert result.event_id == compute_event_id(original, ROOM_VERSIONS[version])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(VERSIONS), st.text() | json_values.map(json.dumps))
def test_any_text_is_dropped(version, text):
    assert_dropped(check(text, version))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(st.sampled_from(TOP_LEVEL), json_values, min_size=8),
)
def test_any_object_is_dropped(version, pdu):
    result = check(json.dumps(pdu), version)
    assert_dropped(result)
    assert result.reason.isascii()
    keys_needed([pdu], ROOM_VERSIONS[version])


# Keys.


@pytest.mark.parametrize("number", range(1, 13))
def test_keys_needed_are_those_the_check_uses(number):
    version = ROOM_VERSIONS[str(number)]
    content = {"membership": "join", "join_authorised_via_users_server": "@b:other.example"}
    pdu = signed_pdu(str(number), content=content)
    pdu = add_signature(pdu, version, "other.example", OTHER_KEY)
    pdu = add_signature(pdu, version, "bystander.example", OTHER_KEY)
    needed = keys_needed([pdu], version)
    available = known() | known(OTHER_KEY, "other.example")
    expected = available if number >= 8 else known()
    assert needed == dict.fromkeys(expected, NOW if number >= 5 else 0)
    keys = {pair: available[pair] for pair in needed}
    assert check(pdu, str(number), keys).outcome is Outcome.ACCEPTED
    for pair in needed:
        without = {other: key for other, key in keys.items() if other != pair}
        assert_uncheckable(check(pdu, str(number), without), pair[0], pair[1])


def test_keys_needed_ask_for_the_latest_time():
    pdus = [signed_pdu("10", origin_server_ts=ts) for ts in (5, NOW, 7)]
    assert keys_needed(pdus, ROOM_VERSIONS["10"]) == {(SERVER, KEY.key_id): NOW}
    assert keys_needed([], ROOM_VERSIONS["10"]) == {}


def test_keys_needed_are_bounded_and_well_formed():
    pdu = signed_pdu("10")
    pdu["signatures"][SERVER] = {f"ed25519:{i}": "x" for i in range(1000)} | {"rsa:1": "x"}
    needed = keys_needed([pdu], ROOM_VERSIONS["10"])
    assert len(needed) == MAX_KEYS_PER_SIGNER
    assert all(key_id.startswith("ed25519:") for _, key_id in needed)
    malformed = {**pdu, "sender": "@a:no such server", "signatures": {"no such server": {}}}
    malformed["signatures"]["no such server"] = {"ed25519:1": "x"}
    assert keys_needed([malformed, pdu], ROOM_VERSIONS["10"]) == needed


@pytest.mark.parametrize("junk", [None, 5, "text", [], {}, {"type": 5}, {"content": None}])
def test_keys_needed_pass_over_what_is_malformed(junk):
    good = signed_pdu("10")
    spoiled = [{**good, field: junk} for field in good if field != "unsigned"]
    for pdu in [junk, *spoiled]:
        assert keys_needed([pdu, good], ROOM_VERSIONS["10"]) == {(SERVER, KEY.key_id): NOW}


def test_the_authorising_server_is_not_asked_of_a_third_party_invite():
    content = {"membership": "invite", "third_party_invite": {}}
    pdu = signed_pdu("10", content=content)
    assert required_signers_of(pdu, ROOM_VERSIONS["10"]) == set()
    assert keys_needed([pdu], ROOM_VERSIONS["10"]) == {}
