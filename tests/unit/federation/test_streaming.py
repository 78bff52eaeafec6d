"""The streaming parser: the same events as `json.loads`, however the body is cut."""

from __future__ import annotations

import asyncio
import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidResponse
from federation.streaming import (
    SLICE_BYTES,
    ParserLimits,
    PduBatch,
    RawPdu,
    ResponseParser,
    parse_chunks,
)

EVENT = {"type": "m.room.member", "content": {"displayname": 'Zoë "Z" \\ 😀'}, "depth": 7}


def new_parser(**limits: int) -> ResponseParser:
    return ResponseParser(
        "far.example",
        pdu_arrays=("pdus", "auth_chain"),
        string_arrays=("servers",),
        fields=("event", "flag"),
        limits=ParserLimits(**limits),
    )


def parse(body: bytes | str, piece: int = 1 << 30, **limits: int) -> tuple[ResponseParser, Any]:
    """The parser after the whole body, and the PDUs by section."""
    data = body.encode() if isinstance(body, str) else body
    return parse_pieces((data[i : i + piece] for i in range(0, len(data), piece)), **limits)


def parse_pieces(pieces: Iterator[bytes], **limits: int) -> tuple[ResponseParser, Any]:
    parser = new_parser(**limits)
    found: dict[str, list[RawPdu]] = {}

    def drain() -> None:
        while (batch := parser.parse(3)) is not None:
            found.setdefault(batch.section, []).extend(batch.pdus)

    for data in pieces:
        parser.feed(data)
        drain()
    parser.close()
    drain()
    return parser, found


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
pdus = st.lists(st.dictionaries(st.text(max_size=6), json_values, max_size=4), max_size=5)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "pdus": pdus,
        "auth_chain": pdus,
        "servers": st.lists(st.text(max_size=20), max_size=4),
        "event": json_values,
        "flag": json_values,
        "unknown": json_values,
        "é": st.lists(json_values, max_size=4),
    },
)


@given(
    body=bodies,
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
    cuts=st.lists(st.integers(0, 4000), max_size=30),
)
def test_any_cut_gives_what_json_loads_gives(
    body: dict[str, Any], ensure_ascii: bool, indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(body, ensure_ascii=ensure_ascii, indent=indent)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(body, indent=indent).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parser, found = parse_pieces(data[a:b] for a, b in itertools.pairwise(edges))

    expected = json.loads(data)
    for section in ("pdus", "auth_chain"):
        assert [raw.pdu for raw in found.get(section, [])] == expected.get(section, [])
        for raw in found.get(section, []):
            assert json.loads(raw.json_text) == raw.pdu
            assert raw.json_text in data.decode()
    assert parser.strings.get("servers") == expected.get("servers")
    for name in ("event", "flag"):
        kept = parser.fields.get(name)
        assert (kept.value if kept else None) == expected.get(name)
    assert parser.keys_seen == expected.keys() & {"pdus", "auth_chain", "servers", "event", "flag"}
    assert parser.dropped == {}


@given(cut=st.integers(0, 400), piece=st.integers(1, 80))
def test_a_body_cut_short_anywhere_is_an_error(cut: int, piece: int) -> None:
    text = json.dumps({"flag": True, "pdus": [EVENT, EVENT], "servers": ["a"], "n": 12})
    cut = min(cut, len(text) - 1)
    with pytest.raises(InvalidResponse, match="cut off or not JSON"):
        parse(text[:cut], piece)


@given(garbage=st.binary(max_size=60), piece=st.integers(1, 20))
def test_garbage_never_escapes_as_another_error(garbage: bytes, piece: int) -> None:
    for data in (garbage, b'{"pdus":[' + garbage, b'{"pdus":[{}' + garbage, b'{"n":' + garbage):
        try:
            parse(data, piece)
        except InvalidResponse:
            continue
        json.loads(data)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_json_text_is_the_exact_slice(piece: int) -> None:
    first = '{ "a" : 1.50, "b":[1,2 ] , "a": 2 }'
    second = '{"c":"\\u00e9\\ud83d\\ude00 é😀"}'
    _, found = parse(f'{{"pdus": [ {first} ,\n{second}\t] }}', piece)
    assert [raw.json_text for raw in found["pdus"]] == [first, second]
    assert found["pdus"][0].pdu == {"a": 2, "b": [1, 2]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "cut off"),
        ("<html>busy</html>", "`{` should be"),
        ("[]", "`{` should be"),
        ("{}x", "the end should be"),
        ("{} {}", "the end should be"),
        ('{"pdus" []}', "`:` should be"),
        ('{"pdus":[{} {}]}', "`,` or `]` should be"),
        ('{"pdus":[{},]}', "cut off or not JSON"),
        ('{"pdus":[{}],}', "a key should be"),
        ('{"pdus":[,]}', "cut off or not JSON"),
        ('{"pdus":[01]}', "`,` or `]` should be|not JSON"),
        ('{"pdus":[NaN]}', "NaN is not JSON"),
        ('{"pdus":[{"a":-Infinity}]}', "-Infinity is not JSON"),
        ('{"pdus":[{"a":tru}]}', "not JSON"),
        ('{"pdus":[{"a":"\n"}]}', "not JSON"),
        ('{"pdus":{}}', "`pdus` is not an array"),
        ('{"pdus":null}', "`pdus` is not an array"),
        ('{"servers":"a.example"}', "`servers` is not an array"),
        ('{"pdus":["$event"]}', "something that is not an event"),
        ('{"pdus":[null]}', "something that is not an event"),
        ('{"pdus":[{}],"pdus":[{}]}', "comes twice"),
        ('{"event":{},"event":{}}', "comes twice"),
        (b'{"pdus":[{"a":"\xff"}]}', "not UTF-8"),
        (b'{"pdus":[{"a":"\xc3', "not UTF-8"),
    ],
)
@pytest.mark.parametrize("piece", [1, 10_000])
def test_what_is_not_the_expected_json_is_refused(
    body: str | bytes, reason: str, piece: int
) -> None:
    with pytest.raises(InvalidResponse, match=reason) as raised:
        parse(body, piece)
    assert raised.value.destination == "far.example"


@pytest.mark.parametrize("number", ["1.5", "1e400", "-0.0", "9" * 30, "9" * 10_000, "1E+2"])
@pytest.mark.parametrize("piece", [1, 4096, 100_000])
def test_numbers_that_no_event_may_hold_do_not_end_the_answer(number: str, piece: int) -> None:
    odd = f'{{"depth":{number}}}'
    _, found = parse(f'{{"pdus":[{odd},{{"depth":3}}],"n":{number},"x":[{number}]}}', piece)
    assert [raw.json_text for raw in found["pdus"]] == [odd, '{"depth":3}']
    assert found["pdus"][1].pdu == {"depth": 3}
    assert isinstance(found["pdus"][0].pdu["depth"], int | float)


@pytest.mark.parametrize("piece", [1, 999, 1 << 20])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_an_event_nested_too_deep_is_left_out_alone(opening: str, closing: str, piece: int) -> None:
    deep = '{"content":' + opening * 5000 + '"]}\\""' + closing * 5000 + "}"
    parser, found = parse(f'{{"pdus":[{{"n":1}},{deep},{{"n":2}}],"x":{deep},"flag":true}}', piece)
    assert [raw.pdu for raw in found["pdus"]] == [{"n": 1}, {"n": 2}]
    assert parser.dropped == {"pdus": 1}
    assert parser.fields["flag"].value is True


def test_a_wanted_field_nested_too_deep_is_refused() -> None:
    with pytest.raises(InvalidResponse, match="`event` is nested too deep"):
        parse('{"event":' + "[" * 5000 + "]" * 5000 + "}")


def test_the_size_of_the_body_is_bounded() -> None:
    with pytest.raises(InvalidResponse, match="larger than 1000 bytes"):
        parse('{"pdus":[' + "{}," * 1000, 100, body_bytes=1000)


@pytest.mark.parametrize("body", ['{"pdus":[{"a":"' + "x" * 300_000, '{"x":"' + "y" * 300_000])
@pytest.mark.parametrize("piece", [500, 1 << 20])
def test_the_size_of_one_element_is_bounded(body: str, piece: int) -> None:
    with pytest.raises(InvalidResponse, match="longer than 262144 characters"):
        parse(body, piece)


def test_the_number_of_elements_is_bounded() -> None:
    body = '{"x":[' + ",".join(["1"] * 60) + '],"pdus":[' + ",".join(["{}"] * 60) + "]}"
    parse(body, elements=120)
    with pytest.raises(InvalidResponse, match="more than 119 things"):
        parse(body, elements=119)


def test_strings_that_are_too_long_or_no_strings_are_dropped_and_counted() -> None:
    body = json.dumps({"servers": ["a", "b" * 256, 5, None, ["c"], "d" * 255]})
    parser, _ = parse(body)
    assert parser.strings == {"servers": ["a", "d" * 255]}
    assert parser.dropped == {"servers": 4}


def test_an_element_that_trickles_in_is_not_parsed_again_and_again() -> None:
    """Bytewise feeding of one large element stays linear: doubling bounds the attempts."""
    attempts = 0

    class Counting(ResponseParser):
        def _incomplete(self, error: Exception | None) -> None:
            nonlocal attempts
            attempts += 1
            super()._incomplete(error)

    parser = Counting("far.example", pdu_arrays=("pdus",))
    body = b'{"pdus":[{"a":"' + b"x" * 60_000 + b'"}]}'
    found = []
    for index in range(len(body)):
        parser.feed(body[index : index + 1])
        while (batch := parser.parse()) is not None:
            found += batch.pdus
    parser.close()
    while (batch := parser.parse()) is not None:
        found += batch.pdus
    assert len(found) == 1
    assert attempts < 40


async def test_parse_chunks_gives_batches_per_section_in_order() -> None:
    body = json.dumps(
        {"auth_chain": [{"a": n} for n in range(1203)], "pdus": [{"p": n} for n in range(10)]}
    ).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    batches: list[PduBatch] = [
        batch async for batch in parse_chunks(new_parser(), chunks(), batch_size=500)
    ]
    assert [batch.section for batch in batches] == ["auth_chain"] * 3 + ["pdus"]
    assert all(500 <= len(batch.pdus) < 1000 for batch in batches[:2])
    assert [raw.pdu["a"] for batch in batches[:3] for raw in batch.pdus] == list(range(1203))
    assert [raw.pdu["p"] for raw in batches[3].pdus] == list(range(10))


async def test_other_tasks_get_their_turn_within_each_slice() -> None:
    """One huge chunk that is all there at once is parsed in slices with the loop in between."""
    events = 20_000
    body = b'{"pdus":[' + b",".join([json.dumps(EVENT).encode()] * events) + b"]}"
    turns = 0
    done = False

    async def ticker() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    task = asyncio.create_task(ticker())
    count = 0
    async for _, batch in parse_chunks(new_parser(), chunks()):
        count += len(batch)
    done = True
    await task
    assert count == events
    assert turns >= len(body) // SLICE_BYTES


async def test_memory_does_not_grow_with_the_body() -> None:
    one = (json.dumps(EVENT) + ",").encode() * 500
    tracemalloc.start()
    try:

        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"pdus":['
            for _ in range(60):
                yield one
            yield b"{}]}"

        async for _, _batch in parse_chunks(new_parser(), chunks(), batch_size=100):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(one) * 60 > 2_500_000
    assert peak < 1_500_000, peak
