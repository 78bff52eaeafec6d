"""Invalidations are out before what they are about."""

from __future__ import annotations

from resync.replication.ordering import InvalidationsFirst
from storage.streams import PositionTracker


def test_rows_wait_for_invalidations_that_were_reserved_before_them() -> None:
    caches = PositionTracker("w")
    order = InvalidationsFirst(caches)
    assert order.release({"rooms": 1}) == {"rooms": 1}

    unrelated = caches.begin()
    caches.reserve(unrelated, [2])
    assert order.release({"rooms": 2}) == {"rooms": 1}
    ours = caches.begin()
    caches.reserve(ours, [3, 4])
    caches.complete(ours)
    # Written with 3 and 4, which are held back by 2.
    assert order.release({"rooms": 3}) == {"rooms": 1}
    later = caches.begin()
    caches.reserve(later, [5])
    assert order.release({"rooms": 4}) == {"rooms": 1}

    caches.complete(unrelated)
    assert order.release({"rooms": 4}) == {"rooms": 3}
    caches.complete(later)
    assert order.release({"rooms": 6}) == {"rooms": 6}


def test_rows_do_not_wait_for_invalidations_that_are_reserved_after_them() -> None:
    caches = PositionTracker("w")
    order = InvalidationsFirst(caches)
    first = caches.begin()
    caches.reserve(first, [2])
    assert order.release({"rooms": 5}) == {}
    for stream_id in range(3, 40):  # there is always one that is not complete
        following = caches.begin()
        caches.reserve(following, [stream_id])
        caches.complete(first)
        first = following
        assert order.release({"rooms": stream_id + 3}) == {"rooms": stream_id + 2}
