import json

import canonicaljson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.canonical_json import (
    MAX_NESTING,
    MAX_SAFE_INTEGER,
    check_strict,
    encode,
    encode_floatless,
    encode_strict,
    parse_json,
    parse_noting_floats,
)
from federation.errors import InvalidEvent, InvalidJson

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
safe_integers = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)


def values(*scalars):
    return st.recursive(
        st.one_of(st.none(), st.booleans(), text, *scalars),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


# The examples of the specification's appendix, the ones with floats apart.
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{}", "{}"),
        ('{\n "one": 1,\n "two": "Two"\n}', '{"one":1,"two":"Two"}'),
        ('{"b": "2", "a": "1"}', '{"a":"1","b":"2"}'),
        (
            """{"auth": {"success": true, "mxid": "@john.doe:example.com", "profile": {
                "display_name": "John Doe", "three_pids": [
                {"medium": "email", "address": "john.doe@example.org"},
                {"medium": "msisdn", "address": "123456789"}]}}}""",
            (
                '{"auth":{"mxid":"@john.doe:example.com","profile":{"display_name":"John Doe",'
                '"three_pids":[{"address":"john.doe@example.org","medium":"email"},'
                '{"address":"123456789","medium":"msisdn"}]},"success":true}}'
            ),
        ),
        ('{"a": "日本語"}', '{"a":"日本語"}'),
        ('{"本": 2, "日": 1}', '{"日":1,"本":2}'),
        (r'{"a": "\u65E5"}', '{"a":"日"}'),
        ('{"a": null}', '{"a":null}'),
        ('{"a": -0}', '{"a":0}'),
        (
            r'{"a": "\/\u0008\t\n\f\r\u0001\u001F\u007f\"\\"}',
            '{"a":"/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\\"\\\\"}',
        ),
    ],
)
def test_examples(source, expected):
    value = parse_json(source)
    for encoder in (encode, encode_floatless, encode_strict):
        assert encoder(value) == expected.encode()


def test_keys_are_sorted_by_code_point_not_by_utf_16():
    value = {"\U0001f600": 1, "\uffee": 2, "a": 3, "": 4}
    expected = '{"":4,"a":3,"\uffee":2,"\U0001f600":1}'.encode()
    assert encode(value) == expected
    assert encode_floatless(value) == expected


@settings(deadline=None)
@given(values(safe_integers))
def test_all_encoders_agree_with_the_library_and_round_trip(value):
    expected = canonicaljson.encode_canonical_json(value)
    assert encode(value) == encode_floatless(value) == encode_strict(value) == expected
    assert parse_json(expected) == value
    assert parse_noting_floats(expected.decode()) == (value, False)
    check_strict(value)


@settings(deadline=None)
@given(values(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_old_room_versions_encode_any_number_as_the_library_does(value):
    expected = canonicaljson.encode_canonical_json(value)
    assert encode(value) == expected
    assert encode(parse_json(expected)) == expected


@settings(deadline=None)
@given(values(st.integers()))
def test_the_fast_encoder_agrees_on_integers_of_any_size(value):
    assert encode_floatless(value) == canonicaljson.encode_canonical_json(value)


@settings(deadline=None)
@given(st.dictionaries(text, safe_integers))
def test_keys_are_sorted(value):
    keys = list(json.loads(encode_floatless(value)))
    assert keys == sorted(value)


@pytest.mark.parametrize("value", [MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER, 0, True, "1.5", None])
def test_strict_accepts(value):
    check_strict({"a": [value]})
    assert encode_strict([value]) == encode([value])


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63, 2**64, 10**300])
def test_strict_refuses_large_integers(value):
    for nested in (value, [value], {"a": {"b": [1, value]}}):
        with pytest.raises(InvalidEvent, match="integer"):
            check_strict(nested)
        with pytest.raises(InvalidEvent, match="integer"):
            encode_strict(nested)


@pytest.mark.parametrize("value", [1.0, -0.0, 1e10, 1.5])
def test_strict_refuses_floats(value):
    for nested in (value, [value], {"a": {"b": [1, value]}}):
        with pytest.raises(InvalidEvent, match="float"):
            check_strict(nested)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a": "\ud800"}, {"\udfff": 1}, {1, 2}, object()]
)
def test_what_has_no_encoding_is_refused(value):
    with pytest.raises(InvalidJson):
        encode(value)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\udfff": 1}])
def test_the_fast_encoders_refuse_lone_surrogates(value):
    for encoder in (encode_floatless, encode_strict):
        with pytest.raises(InvalidJson, match="surrogate"):
            encoder(value)


@pytest.mark.parametrize(
    "source",
    ["", "{", "[1,]", "{'a': 1}", "nul", "01", "1 2", "NaN", "[Infinity]", '{"a": -Infinity}',
     '"\t"', "\ufeff{}", "[" * 100_000, '{"a":' * 100_000, "9" * 5000],
)  # fmt: skip
def test_what_is_not_json_is_refused(source):
    with pytest.raises(InvalidJson):
        parse_json(source)
    with pytest.raises(InvalidJson):
        parse_json(source.encode())
    with pytest.raises(InvalidJson):
        parse_noting_floats(source)


@pytest.mark.parametrize("source", [b'"\xff"', b'{"a":"\xed\xa0\x80"}', '{"a":1}'.encode("utf-16")])
def test_what_is_not_utf_8_is_refused(source):
    with pytest.raises(InvalidJson):
        parse_json(source)


def test_nesting_is_bounded_at_the_same_depth_everywhere():
    deepest = "[" * MAX_NESTING + "]" * MAX_NESTING
    value = parse_json(deepest)
    assert encode(value) == encode_floatless(value) == encode_strict(value) == deepest.encode()
    check_strict(value)
    with pytest.raises(InvalidJson, match="nested deeper"):
        parse_json("[" + deepest + "]")


def test_many_brackets_that_are_not_deep_are_fine():
    wide = [[]] * 2000 + ['[[[{{{\\"[' * 300]
    assert parse_json(json.dumps(wide)) == wide


def test_of_duplicate_keys_the_last_counts():
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize(
    ("source", "has_floats"),
    [('{"a": "1.5"}', False), ("[1]", False), ("[1.0]", True), ("[1e2]", True), ("[-1E-2]", True)],
)
def test_floats_are_noticed(source, has_floats):
    value, noticed = parse_noting_floats(source)
    assert noticed is has_floats
    assert value == json.loads(source)


@settings(deadline=None)
@given(st.text() | st.binary())
def test_any_input_is_parsed_or_refused(source):
    try:
        value = parse_json(source)
    except InvalidJson:
        return
    assert value == json.loads(source)
