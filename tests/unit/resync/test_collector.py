"""When Python's collector runs while rooms are worked on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from resync.collector import Collector


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def dropped_cycle() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


def test_nothing_is_collected_while_a_room_is_worked_on() -> None:
    collector = Collector()
    with collector.room():
        assert not gc.isenabled()
        with collector.room():
            pass
        assert not gc.isenabled()
        left = dropped_cycle()
        assert left() is not None
    assert gc.isenabled()
    assert left() is None


def test_the_collector_comes_back_after_a_failure() -> None:
    collector = Collector()
    with pytest.raises(ZeroDivisionError), collector.room():
        _ = 1 / 0
    assert gc.isenabled()


def test_a_worker_that_is_never_idle_collects_now_and_then() -> None:
    clock = Clock()
    collector = Collector(clock)
    with collector.room():
        left = dropped_cycle()
        with collector.room():
            clock.now = 59.0
        assert left() is not None
        with collector.room():
            clock.now = 61.0
        assert left() is None
        assert not gc.isenabled()


def test_what_exists_is_left_out_until_the_end() -> None:
    with Collector().leave_out_what_exists():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
