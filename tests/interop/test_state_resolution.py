"""Our authorization rules and state resolution against Synapse's, on random histories.

Every history is grown with our own code: the state before each event, its verdict, the state
after it. Synapse then answers the same questions. Its answers being equal for every event of a
history, in order, the whole history is the one that Synapse would have seen.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from federation.events import Event
from federation.room_versions import ROOM_VERSIONS
from resync import auth
from resync.state import IndexedState, resolve, resolve_deltas
from tests.histories import random_history
from tests.interop.random_rooms import RandomRoom
from tests.interop.synapse_oracle import Resolution, SynapseOracle

ROOMS = 15
"""Rooms per room version, of `EVENTS` events each."""
EVENTS = 70
RESOLUTIONS = 36
"""Per room: what its merges need, then samples of states from anywhere in the room."""
LEAST_RESOLUTIONS = 420
"""Per room version, which makes more than 5,000 for the twelve."""
MALFORMED_ROOMS = 6
DAMAGED_ROOMS = 4
SHARED_ROOMS = 6

State = dict[tuple[str, str], str]


@dataclass
class History:
    """What our code makes of a random room."""

    room_version: str
    events: dict[str, Event] = field(default_factory=dict)
    rejections: dict[str, str] = field(default_factory=dict)
    before: dict[str, State] = field(default_factory=dict)
    after: dict[str, State] = field(default_factory=dict)
    resolutions: list[tuple[list[State], State]] = field(default_factory=list)

    def resolve(self, state_sets: Sequence[State]) -> State:
        distinct = [state for n, state in enumerate(state_sets) if state not in state_sets[:n]]
        if len(distinct) == 1:
            return distinct[0]
        state = self.resolve_here(distinct)
        self.resolutions.append((distinct, state))
        return state

    def resolve_here(self, state_sets: Sequence[State]) -> State:
        """By both ways into our state resolution, which have to agree."""
        rejected = self.rejections.keys()
        state = resolve(self.room_version, state_sets, self.events, rejected=rejected)
        # As the walk does it: deltas from the state at some other place in the room.
        base = self.after[next(reversed(self.after))]
        deltas = [
            {key: to.get(key) for key in {**base, **to} if to.get(key) != base.get(key)}
            for to in state_sets
        ]
        auth_events = {e.event_id: e.auth_event_ids for e in self.events.values()}
        changes = resolve_deltas(
            self.room_version,
            IndexedState(base, auth_events),
            deltas,
            self.events,
            rejected=rejected,
        )
        changed = {**base, **changes}
        assert {key: e for key, e in changed.items() if e is not None} == state
        return state

    def judge(self, event: Event, before: Mapping[tuple[str, str], str]) -> str:
        """Why the event is rejected by the checks on receipt, "" if it is accepted."""
        auth_events = {e: self.events[e] for e in event.auth_event_ids}
        needed = auth.state_needed_for_event(event)
        # From version 12 on the create event authorises every event without being named.
        create = next(iter(self.events.values()))
        if event.room_version.room_id_is_create_hash and event is not create:
            auth_events[create.event_id] = create
        try:
            auth.check_auth_events(event, auth_events, self.rejections.keys())
            auth.check_auth_rules(event, {e.key: e for e in auth_events.values()})
            state = {key: self.events[e] for key, e in before.items() if key in needed}
            auth.check_auth_rules(event, state)
        except auth.NotAuthorised as error:
            return str(error) or "no reason given"
        return ""


def grow_history(rng: random.Random, room_version: str, *, malformed: bool = False) -> History:
    """A history with forks and merges, and further resolutions across it."""
    room = RandomRoom(rng, room_version, malformed=malformed)
    history = History(room_version, room.events)
    heads: list[str] = []
    while len(room.events) < EVENTS:
        prev_ids = choose_prev_events(rng, heads, list(room.events))
        before = history.resolve([history.after[e] for e in prev_ids]) if prev_ids else {}
        seen = None
        if len(room.events) > 8 and rng.random() < 0.15:
            seen = history.after[rng.choice(list(history.after))]
        event = room.propose(prev_ids, before, seen=seen)
        history.before[event.event_id] = before
        rejection = history.judge(event, before)
        if rejection:
            history.rejections[event.event_id] = rejection
        accepted_state = event.is_state and not rejection
        history.after[event.event_id] = (
            {**before, event.key: event.event_id} if accepted_state else before
        )
        heads = [head for head in heads if head not in prev_ids] + [event.event_id]
    # Bounded, as hardly anything may ever be accepted in a room.
    for _ in range(4 * RESOLUTIONS):
        if len(history.resolutions) >= RESOLUTIONS:
            break
        history.resolve(sample_states(rng, history))
    return history


def sample_states(rng: random.Random, history: History) -> list[State]:
    """States from anywhere in the room."""
    sampled = rng.sample(list(history.after), rng.choice((2, 2, 2, 3, 4)))
    return [history.after[event_id] for event_id in sampled]


def choose_prev_events(
    rng: random.Random, heads: Sequence[str], event_ids: Sequence[str]
) -> list[str]:
    """A straight beginning; then continue a branch, start one, or merge some."""
    chance = rng.random()
    if len(event_ids) < 8:
        return list(heads)
    if chance < 0.2 and len(heads) > 1:
        return rng.sample(list(heads), rng.randrange(2, min(len(heads), 4) + 1))
    if chance < 0.4:
        return [rng.choice(event_ids[-15:])]
    return [rng.choice(heads)]


@pytest.fixture
def differences(tmp_path: Path) -> Any:
    """Collects differences; each is written to a file from which it can be reproduced."""
    found = Differences(tmp_path)
    yield found
    found.check_none()


class Differences:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines: list[str] = []

    def add(self, summary: str, history: History, case: Mapping[str, Any]) -> None:
        path = self._directory / f"difference-{len(self._lines)}.json"
        events = {
            event_id: {"pdu": event.pdu, "rejection": history.rejections.get(event_id, "")}
            for event_id, event in history.events.items()
        }
        case = {"room_version": history.room_version, "summary": summary, **case, "events": events}
        path.write_text(json.dumps(case, indent=1))
        self._lines.append(f"{summary}\n    {path}")

    def check_none(self) -> None:
        if self._lines:
            shown = "\n".join(self._lines[:20])
            pytest.fail(f"{len(self._lines)} differences\n{shown}", pytrace=False)


@pytest.mark.parametrize("room_version", ROOM_VERSIONS)
def test_resolutions_and_verdicts_are_synapses(
    room_version: str, oracle: SynapseOracle, differences: Differences
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(ROOMS):
        history = grow_history(random.Random(f"{room_version}/{seed}"), room_version)
        compare(history, oracle, differences, counts, f"version {room_version} seed {seed}")
    print(dict(counts))  # shown with a failure, or by `pytest -rP`
    assert counts["resolutions"] >= LEAST_RESOLUTIONS
    # The histories have to be about something, and Synapse has to have done all of the work.
    assert counts["exceptions"] == 0
    assert counts["own_difference"] > 0.9 * counts["resolutions"]
    assert counts["changed by resolution"] > 0.25 * counts["resolutions"]
    for outcome in ("accepted", "rejected by its auth events", "rejected by the state before it"):
        assert counts[outcome] > 0


@pytest.mark.parametrize("room_version", ROOM_VERSIONS)
def test_malformed_contents_are_rejected_as_synapse_rejects_them(
    room_version: str, oracle: SynapseOracle, differences: Differences
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(MALFORMED_ROOMS):
        rng = random.Random(f"malformed {room_version}/{seed}")
        history = grow_history(rng, room_version, malformed=True)
        name = f"malformed version {room_version} seed {seed}"
        compare(history, oracle, differences, counts, name)
    print(dict(counts))
    # Where a value that it did not expect makes Synapse give up, there is nothing to compare.
    assert counts["exceptions"] < 0.2 * counts["resolutions"]
    assert counts["accepted"] > 0


@pytest.mark.parametrize("room_version", list(ROOM_VERSIONS)[1:])
@pytest.mark.parametrize("damage", ["rejected", "missing"])
def test_rejected_and_missing_events_do_to_a_resolution_what_they_do_in_synapse(
    room_version: str, damage: str, oracle: SynapseOracle, differences: Differences
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(DAMAGED_ROOMS):
        rng = random.Random(f"{damage} {room_version}/{seed}")
        history = grow_history(rng, room_version)
        _create, *others = history.events
        chosen = rng.sample(others, len(others) // 12)
        if damage == "rejected":
            history.rejections.update(dict.fromkeys(chosen, "damaged"))
        else:
            for event_id in chosen:
                del history.events[event_id]
        history.resolutions = [
            (state_sets, history.resolve_here(state_sets)) for state_sets, _ in history.resolutions
        ]
        oracle.load_room(room_version, history.events.values(), history.rejections)
        name = f"{damage} version {room_version} seed {seed}"
        compare_resolutions(history, oracle, differences, counts, name)
    print(dict(counts))
    assert counts["resolutions"] - counts["exceptions"] > 15 * DAMAGED_ROOMS


@pytest.mark.parametrize("room_version", ROOM_VERSIONS)
def test_the_unit_tests_histories_resolve_as_in_synapse(
    room_version: str, oracle: SynapseOracle, differences: Differences
) -> None:
    """Histories from the generator of the unit tests, written independently of ours."""
    counts: Counter[str] = Counter()
    for seed in range(SHARED_ROOMS):
        shared = random_history(room_version, seed)
        history = History(
            room_version,
            shared.events,
            dict.fromkeys(shared.rejected, "rejected"),
            after=shared.state_after,
        )
        for states in [*shared.merges, *shared.conflicts(random.Random(seed), RESOLUTIONS)]:
            history.resolve(states)
        oracle.load_room(room_version, history.events.values(), history.rejections)
        name = f"shared version {room_version} seed {seed}"
        compare_resolutions(history, oracle, differences, counts, name)
    print(dict(counts))
    assert counts["exceptions"] == 0
    assert counts["resolutions"] > 10 * SHARED_ROOMS


def compare(
    history: History,
    oracle: SynapseOracle,
    differences: Differences,
    counts: Counter[str],
    name: str,
) -> None:
    ids = oracle.load_room(history.room_version, history.events.values(), history.rejections)
    for ours, synapses in zip(history.events, ids, strict=True):
        if ours != synapses:
            differences.add(f"{name}: id {ours}, Synapse has {synapses}", history, {})
    compare_verdicts(history, oracle, differences, counts, name)
    compare_resolutions(history, oracle, differences, counts, name)


def compare_resolutions(
    history: History,
    oracle: SynapseOracle,
    differences: Differences,
    counts: Counter[str],
    name: str,
) -> None:
    for state_sets, ours_state in history.resolutions:
        resolution = oracle.resolve(state_sets)
        counts["resolutions"] += 1
        if resolution.state is None:
            counts["exceptions"] += 1
            counts[resolution.exception[:40]] += 1
            continue
        counts["own_difference"] += resolution.own_difference
        counts["changed by resolution"] += resolution.state not in state_sets
        if resolution.state != ours_state:
            add_difference(history, differences, name, state_sets, ours_state, resolution)


def compare_verdicts(
    history: History,
    oracle: SynapseOracle,
    differences: Differences,
    counts: Counter[str],
    name: str,
) -> None:
    verdicts = oracle.verdicts(history.before.items())
    for (event_id, before), verdict in zip(history.before.items(), verdicts, strict=True):
        ours = history.rejections.get(event_id, "")
        outcome = {
            "": "accepted",
            "events": "rejected for its auth events",
            "auth": "rejected by its auth events",
            "state": "rejected by the state before it",
        }[verdict.step]
        counts[outcome] += 1
        if bool(ours) != bool(verdict.step):
            differences.add(
                f"{name}: {event_id} {history.events[event_id].type}: "
                f"ours: {ours or 'accepted'}; Synapse: {verdict.reason or 'accepted'}",
                history,
                {
                    "event_id": event_id,
                    "before": [[*key, e] for key, e in before.items()],
                    "ours": ours,
                    "synapse": verdict._asdict(),
                },
            )


def add_difference(
    history: History,
    differences: Differences,
    name: str,
    state_sets: Sequence[State],
    ours: State,
    synapse: Resolution,
) -> None:
    assert synapse.state is not None
    keys = [key for key in {**ours, **synapse.state} if ours.get(key) != synapse.state.get(key)]
    differences.add(
        f"{name}: {len(state_sets)} state sets differ at {keys}",
        history,
        {
            "state_sets": [[[*key, e] for key, e in state.items()] for state in state_sets],
            "differing": [[*key, ours.get(key), synapse.state.get(key)] for key in keys],
        },
    )
