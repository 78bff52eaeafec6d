"""Waiting after failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resync.backoff import JITTER, wait_seconds


@pytest.mark.parametrize(("attempts", "expected"), [(1, 5.0), (2, 10.0), (4, 40.0), (50, 3600.0)])
def test_the_wait_doubles_up_to_its_maximum(attempts: int, expected: float) -> None:
    assert wait_seconds(attempts, minimum=5.0, maximum=3600.0, random=0.5) == expected


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_a_room_is_never_given_up(attempts: int, random: float) -> None:
    wait = wait_seconds(attempts, minimum=5.0, maximum=3600.0, random=random)
    assert 5.0 * (1 - JITTER) <= wait <= 3600.0 * (1 + JITTER)
