"""Positions of a stream: the documentation's table, and properties over random interleavings."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.stream_rows import current_state_invalidations
from storage.stream_tracker import PositionTracker, Reservation


def test_reserving_and_completing_follow_the_documentation() -> None:
    tracker = PositionTracker("master")
    reservations: dict[int, Reservation] = {}

    def reserve(stream_id: int) -> None:
        reservations[stream_id] = tracker.begin()
        tracker.reserve(reservations[stream_id], [stream_id])

    def complete(stream_id: int) -> None:
        tracker.complete(reservations[stream_id])

    steps = [
        (reserve, 2, 1),
        (reserve, 3, 1),
        (complete, 3, 1),
        (complete, 2, 3),
        (reserve, 4, 3),
        (reserve, 5, 3),
        (reserve, 6, 3),
        (complete, 5, 3),
        (complete, 4, 5),
        (complete, 6, 6),
    ]
    assert tracker.position("master") == 1
    for action, stream_id, current in steps:
        action(stream_id)
        assert tracker.position("master") == current
        # With one writer the two notions of a position are the same.
        assert tracker.linear == current


def test_an_id_that_is_being_fetched_holds_the_position_back() -> None:
    tracker = PositionTracker("a")
    fetching = tracker.begin()
    tracker.observe(9)  # somebody else has got 9; ours may be smaller
    assert tracker.position("a") == 1
    tracker.reserve(fetching, [7, 8])
    assert tracker.position("a") == 6
    tracker.complete(fetching)
    assert tracker.position("a") == 9


def test_a_fetch_that_failed_holds_nothing_back() -> None:
    tracker = PositionTracker("a", start=4)
    fetching = tracker.begin()
    tracker.observe(6)
    assert tracker.position("a") == 4
    tracker.complete(fetching)
    assert tracker.position("a") == 6


def test_an_id_that_was_in_use_is_refused() -> None:
    tracker = PositionTracker("a", start=10)
    with pytest.raises(ValueError, match="10 was already in use"):
        tracker.reserve(tracker.begin(), [10, 11])


def test_the_linear_position_waits_for_every_writer() -> None:
    tracker = PositionTracker("a", start=5, others={"b": 3})
    assert tracker.positions() == {"a": 5, "b": 3}
    assert tracker.linear == 3
    tracker.advance("b", 4)
    assert tracker.linear == 4
    tracker.advance("b", 9)
    assert tracker.linear == 9
    tracker.advance("b", 7)
    assert tracker.linear == 9
    assert tracker.position("b") == 9


def test_the_linear_position_passes_a_run_without_gaps() -> None:
    tracker = PositionTracker("a", start=5, others={"b": 5})
    ours = tracker.begin()
    tracker.reserve(ours, [6, 7, 9])
    tracker.complete(ours)
    # 8 is somebody else's, and b has not said that it is complete.
    assert tracker.linear == 7
    tracker.advance("c", 8, rows=[8])
    assert tracker.linear == 9


def test_a_forgotten_writer_holds_nobody_back() -> None:
    tracker = PositionTracker("a", start=5, others={"b": 2})
    tracker.forget("b")
    assert tracker.linear == 5


def test_changed_members_are_spread_over_rows() -> None:
    members = [f"@{number}:example.com" for number in range(101)]
    rows = current_state_invalidations("!room", members)
    assert [len(row.keys or ()) for row in rows] == [51, 51, 2]
    assert [key for row in rows for key in (row.keys or ())[1:]] == members
    assert {(row.function, (row.keys or ())[0]) for row in rows} == {("cs_cache_fake", "!room")}
    assert current_state_invalidations("!room", []) == [("cs_cache_fake", ["!room"])]


WRITERS = ["a", "b", "c"]


@dataclass
class Pending:
    """A reservation on its way: fetched or not, its rows committed or not."""

    reservation: Reservation
    committed: bool = False


@dataclass
class Process:
    """A writer's process: what is lost in a crash."""

    tracker: PositionTracker
    pending: list[Pending] = field(default_factory=list)


class Model:
    """A database, processes that write to it, and a reader; ids and rows only."""

    def __init__(self) -> None:
        self.sequence = 1
        self.table: dict[int, str] = {}
        self.stored = dict.fromkeys(WRITERS, 1)
        self.processes = {name: Process(PositionTracker(name)) for name in WRITERS}
        self.seen = dict.fromkeys(WRITERS, 1)
        self.delivered: dict[str, list[int]] = {name: [] for name in WRITERS}
        self.reader = dict.fromkeys(WRITERS, 1)
        for process in self.processes.values():
            for other in WRITERS:
                process.tracker.advance(other, 1)

    def step(self, action: str, name: str, choice: int) -> None:
        process = self.processes[name]
        tracker, pending = process.tracker, process.pending
        picked = pending[choice % len(pending)] if pending else None
        match action:
            case "begin":
                pending.append(Pending(tracker.begin()))
            case "fetch" if picked and not picked.reservation.ids:
                ids = range(self.sequence + 1, self.sequence + 2 + choice % 3)
                self.sequence = ids[-1]
                tracker.reserve(picked.reservation, ids)
            case "commit" if picked and not picked.committed:
                picked.committed = True
                self.table |= dict.fromkeys(picked.reservation.ids, name)
            case "complete" if picked:  # without a commit before it, this is a rollback
                pending.remove(picked)
                tracker.complete(picked.reservation)
            case "look":
                tracker.observe(max(self.table, default=1))
                for other in WRITERS:
                    tracker.advance(other, self.stored[other])
            case "announce":
                self.announce(name)
            case "crash":
                others = {k: v for k, v in self.stored.items() if k != name}
                self.processes[name] = Process(
                    PositionTracker(name, start=self.sequence, others=others)
                )

    def announce(self, name: str) -> None:
        position = self.processes[name].tracker.position(name)
        rows = [i for i in sorted(self.table) if self.stored[name] < i <= position]
        for stream_id in rows:
            if self.table[stream_id] == name and stream_id > self.reader[name]:
                self.delivered[name].append(stream_id)
                self.reader[name] = stream_id
        self.stored[name] = max(self.stored[name], position)

    def unfinished(self, name: str) -> set[int]:
        return {i for p in self.processes[name].pending for i in p.reservation.ids}

    def check(self) -> None:
        everything = set().union(*(self.unfinished(name) for name in WRITERS))
        for name, process in self.processes.items():
            position = process.tracker.position(name)
            assert position >= self.seen[name], "a position never goes back"
            self.seen[name] = position
            assert not any(i <= position for i in self.unfinished(name))
            assert not any(i <= process.tracker.linear for i in everything)


ACTIONS = ["begin", "fetch", "fetch", "commit", "complete", "announce", "look", "crash"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.sampled_from(WRITERS), st.integers(0, 20)),
        max_size=120,
    )
)
def test_every_row_is_delivered_once_and_in_order(steps: list[tuple[str, str, int]]) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()
    for name in WRITERS:
        # Whatever is still open dies with its process; what was committed is delivered.
        model.step("crash", name, 0)
        model.announce(name)
        model.check()
        assert model.delivered[name] == [i for i, w in sorted(model.table.items()) if w == name]
