"""Hypothesis strategies for rooms and for what strangers put into events."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.histories import ALL_VERSIONS, History, random_history

room_versions = st.sampled_from(ALL_VERSIONS)

_WORDS = st.sampled_from(
    [
        *("join", "invite", "leave", "ban", "knock", "public", "restricted", "knock_restricted"),
        *("@creator:a.example", "@alice:a.example", "@", "@:", ":", "", "50", " +50", "1e3"),
        *("m.room.create", "m.room.member", "token", "ed25519:1", "\ud800", "\0"),
    ]
)
_NUMBERS = st.sampled_from([0, 1, -1, 50, 100, 2**53, -(2**70), 0.5, float("inf"), float("nan")])

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=4,
)
"""Any JSON value, drawn mostly from words and numbers that mean something in events."""


@st.composite
def histories(draw: st.DrawFn, *, min_length: int = 10, max_length: int = 50) -> History:
    """Random room histories in any room version; see `tests.histories`."""
    room_version = draw(room_versions)
    length = draw(st.integers(min_length, max_length))
    return random_history(room_version, draw(st.integers(0, 2**32)), length=length)
