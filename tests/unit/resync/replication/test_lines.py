"""Splitting bytes into lines, however they arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resync.replication.lines import LineDecoder, LineTooLong


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_they_arrive(parts: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(parts)
    decoder = LineDecoder(1000)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    lines = [line for start, end in pairwise(edges) for line in decoder.feed(data[start:end])]
    lines += decoder.feed(b"\n")
    assert lines == [line.rstrip(b"\r") for line in data.split(b"\n") if line.strip()]


def test_a_line_may_be_as_long_as_the_limit() -> None:
    assert LineDecoder(5).feed(b"12345\n") == [b"12345"]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"123456\n"],
        [b"123456"],
        [b"123", b"456"],
        [b"1\n123456\n2\n"],
        [b"1\n123456"],
        [b"123", b"456\n1\n"],
    ],
)
def test_a_line_beyond_the_limit_is_refused(chunks: list[bytes]) -> None:
    decoder = LineDecoder(5)
    *earlier, last = chunks
    for chunk in earlier:
        decoder.feed(chunk)
    with pytest.raises(LineTooLong):
        decoder.feed(last)
