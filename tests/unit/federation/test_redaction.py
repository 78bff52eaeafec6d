import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.redaction import redact
from federation.room_versions import ROOM_VERSIONS

ALL = range(1, 13)

TOP_LEVEL_KEPT = {
    "event_id",
    "type",
    "room_id",
    "sender",
    "state_key",
    "content",
    "hashes",
    "signatures",
    "depth",
    "prev_events",
    "auth_events",
    "origin_server_ts",
}
TOP_LEVEL_KEPT_BEFORE_11 = {"prev_state", "origin", "membership"}
TOP_LEVEL_STRIPPED = {"unsigned", "redacts", "age_ts", "org.example.key", "destinations"}

POWER_LEVEL_KEYS = {
    "ban",
    "events",
    "events_default",
    "kick",
    "redact",
    "state_default",
    "users",
    "users_default",
}

# (event type, content key, room versions in which the key stays), from the version pages.
CONTENT_RULES = [
    ("m.room.member", "membership", ALL),
    ("m.room.member", "join_authorised_via_users_server", range(9, 13)),
    ("m.room.member", "displayname", ()),
    ("m.room.member", "avatar_url", ()),
    ("m.room.create", "creator", ALL),
    ("m.room.create", "room_version", range(11, 13)),
    ("m.room.create", "m.federate", range(11, 13)),
    ("m.room.create", "predecessor", range(11, 13)),
    ("m.room.create", "additional_creators", range(11, 13)),
    ("m.room.join_rules", "join_rule", ALL),
    ("m.room.join_rules", "allow", range(8, 13)),
    ("m.room.join_rules", "other", ()),
    *[("m.room.power_levels", key, ALL) for key in sorted(POWER_LEVEL_KEYS)],
    ("m.room.power_levels", "invite", range(11, 13)),
    ("m.room.power_levels", "notifications", ()),
    ("m.room.aliases", "aliases", range(1, 6)),
    ("m.room.history_visibility", "history_visibility", ALL),
    ("m.room.history_visibility", "other", ()),
    ("m.room.redaction", "redacts", range(11, 13)),
    ("m.room.redaction", "reason", ()),
    ("m.room.message", "body", ()),
    ("m.room.message", "membership", ()),
    ("m.room.topic", "topic", ()),
]


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize(("event_type", "key", "kept_in"), CONTENT_RULES)
def test_content_keys(number, event_type, key, kept_in):
    content = {key: ["value"], "org.example.junk": 1} if key != "other" else {key: 1}
    pdu = {"type": event_type, "content": content}
    redacted = redact(pdu, ROOM_VERSIONS[str(number)])
    assert (key in redacted["content"]) is (number in kept_in)
    if number in kept_in:
        assert redacted["content"][key] == ["value"]


@pytest.mark.parametrize("number", ALL)
def test_top_level_keys(number):
    keys = TOP_LEVEL_KEPT | TOP_LEVEL_KEPT_BEFORE_11 | TOP_LEVEL_STRIPPED
    pdu = {key: {} for key in keys} | {"type": "m.room.message"}
    expected = TOP_LEVEL_KEPT | (TOP_LEVEL_KEPT_BEFORE_11 if number < 11 else set())
    assert set(redact(pdu, ROOM_VERSIONS[str(number)])) == expected


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize(
    ("invite", "kept"),
    [
        ({"signed": {"token": "t"}, "display_name": "d"}, {"signed": {"token": "t"}}),
        ({"signed": 5}, {"signed": 5}),
        ({"display_name": "d"}, {}),
        ({}, {}),
        ("no object", None),
        (None, None),
    ],
)
def test_third_party_invite_keeps_what_is_signed_from_version_11(number, invite, kept):
    content = {"membership": "invite", "third_party_invite": invite}
    redacted = redact({"type": "m.room.member", "content": content}, ROOM_VERSIONS[str(number)])
    expected = {"membership": "invite"}
    if number >= 11 and kept is not None:
        expected["third_party_invite"] = kept
    assert redacted["content"] == expected


def test_create_content_is_kept_whole_from_version_11():
    content = {"anything": {"nested": [1]}, "creator": "@a:b"}
    pdu = {"type": "m.room.create", "content": content}
    assert redact(pdu, ROOM_VERSIONS["10"])["content"] == {"creator": "@a:b"}
    assert redact(pdu, ROOM_VERSIONS["11"])["content"] == content


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize("content", [None, 5, "text", [1], True])
@pytest.mark.parametrize("event_type", ["m.room.member", "m.room.create", None, 7, [], {}])
def test_malformed_events_do_not_raise(number, content, event_type):
    redacted = redact({"type": event_type, "content": content}, ROOM_VERSIONS[str(number)])
    assert redacted == {"type": event_type, "content": {}}
    assert redact({"type": event_type}, ROOM_VERSIONS[str(number)]) == {"type": event_type}
    assert redact({}, ROOM_VERSIONS[str(number)]) == {}


@settings(deadline=None)
@given(
    st.sampled_from(sorted(ROOM_VERSIONS)),
    st.sampled_from(sorted({rule[0] for rule in CONTENT_RULES})),
    st.dictionaries(
        st.sampled_from(sorted({rule[1] for rule in CONTENT_RULES} | {"third_party_invite"})),
        st.none() | st.integers() | st.dictionaries(st.sampled_from(["signed", "x"]), st.none()),
    ),
)
def test_redacting_twice_changes_nothing_and_the_original_is_untouched(name, event_type, content):
    pdu = {"type": event_type, "content": content, "unsigned": {}, "depth": 1}
    before = copy.deepcopy(pdu)
    redacted = redact(pdu, ROOM_VERSIONS[name])
    assert pdu == before
    assert redact(redacted, ROOM_VERSIONS[name]) == redacted
