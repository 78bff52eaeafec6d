import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import InvalidIdentifier
from federation.identifiers import (
    ServerName,
    check_event_id,
    check_room_id,
    check_server_name,
    check_user_id,
    domain_of,
    parse_server_name,
    shown,
)

HASH = "Nhcu5BS-UMnFX7hBVfVSoXiD7OgH6iRT-xyIuqDnpYQ"


@pytest.mark.parametrize(
    ("text", "host", "port", "is_ip"),
    [
        ("matrix.org", "matrix.org", None, False),
        ("matrix.org:8888", "matrix.org", 8888, False),
        ("1.2.3.4", "1.2.3.4", None, True),
        ("1.2.3.4:1234", "1.2.3.4", 1234, True),
        ("[1234:5678::abcd]", "1234:5678::abcd", None, True),
        ("[1234:5678::abcd]:5678", "1234:5678::abcd", 5678, True),
        ("[::ffff:1.2.3.4]:1", "::ffff:1.2.3.4", 1, True),
        ("localhost", "localhost", None, False),
        ("MATRIX.Org", "MATRIX.Org", None, False),
        ("1.2.3", "1.2.3", None, False),
        ("127.000.000.001", "127.000.000.001", None, True),
        ("example.com.", "example.com.", None, False),
        ("a:00001", "a", 1, False),
        ("a:65535", "a", 65535, False),
    ],
)
def test_server_names_are_taken_apart(text, host, port, is_ip):
    parsed = parse_server_name(text)
    assert parsed == ServerName(host, port)
    assert parsed.is_ip_literal is is_ip


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":8448",
        "matrix.org:",
        "matrix.org:123456",
        "matrix.org:65536",
        "matrix.org:-1",
        "matrix.org:8448\n",
        "matrix.org\n",
        "matrix_org",
        "matrix.org/path",
        "user@matrix.org",
        "münchen.de",
        "1.2.3.256",
        "[1234:5678::abcd",
        "1234:5678::abcd",
        "[12345::]",
        "[]",
        "[::1]x",
        "a..b",
        ".",
        "a b",
        "a\0b",
        "a" * 256,
        "١٢٣",
        None,
        5,
        b"matrix.org",
    ],
)
def test_other_server_names_are_refused(text):
    with pytest.raises(InvalidIdentifier):
        check_server_name(text)


@pytest.mark.parametrize(
    "user_id",
    [
        "@alice:example.com",
        "@alice:example.com:8448",
        "@alice:[::1]:8448",
        "@:example.com",
        "@Über Ä/\x01:example.com",
        "@" + "a" * 242 + ":example.com",
    ],
)
def test_user_ids_historical_ones_too(user_id):
    check_user_id(user_id)
    assert domain_of(user_id) == user_id.split(":", 1)[1]


@pytest.mark.parametrize(
    "user_id",
    [
        "alice:example.com",
        "@alice",
        "@alice:",
        "@",
        "",
        "!alice:example.com",
        "@alice:exa mple",
        "@al\0ice:example.com",
        "@al\ud800ice:example.com",
        "@" + "a" * 243 + ":example.com",
        "@" + "ä" * 122 + ":example.com",
        None,
        7,
    ],
)
def test_other_user_ids_are_refused(user_id):
    with pytest.raises(InvalidIdentifier):
        check_user_id(user_id)


@pytest.mark.parametrize("user_id", ["alice:example.com", "@alice", "", None, 5])
def test_no_domain_in_what_is_no_user_id(user_id):
    with pytest.raises(InvalidIdentifier):
        domain_of(user_id)


@pytest.mark.parametrize("room_id", ["!abc:example.com", "!:example.com:1", "!" + HASH])
def test_room_ids_with_and_without_a_domain(room_id):
    check_room_id(room_id)


@pytest.mark.parametrize(
    "room_id",
    ["", "!", "!abc", "abc:example.com", "#a:b", "!" + HASH[:-1], "!" + HASH + "a",
     "!" + HASH + "\n", "!" + HASH.replace("-", "+"), "!a:b_c", None, ["!a:b"]],
)  # fmt: skip
def test_other_room_ids_are_refused(room_id):
    with pytest.raises(InvalidIdentifier):
        check_room_id(room_id)


@pytest.mark.parametrize("event_id", ["$" + HASH, "$abc:example.com", "$a"])
def test_event_ids(event_id):
    check_event_id(event_id)


@pytest.mark.parametrize("event_id", ["", "$", "abc", "$" + "a" * 255, "$\udfff", None])
def test_other_event_ids_are_refused(event_id):
    with pytest.raises(InvalidIdentifier):
        check_event_id(event_id)


@settings(deadline=None)
@given(st.text() | st.none() | st.integers())
def test_anything_is_either_parsed_or_refused_with_a_short_message(value):
    for check in (check_server_name, check_user_id, check_room_id, check_event_id):
        message = ""
        try:
            check(value)
        except InvalidIdentifier as error:
            message = str(error)
        assert len(message) < 2500
        assert message.isascii()


def test_what_strangers_wrote_is_shown_quoted_and_short():
    assert shown("a\n\x1b[1m") == r"'a\n\x1b[1m'"
    assert len(shown("x" * 100_000)) < 120
    assert shown({}) == "a dict"
