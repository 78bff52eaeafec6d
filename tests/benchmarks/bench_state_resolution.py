"""State resolution over large rooms: time, memory, and where the time goes.

Run it as a script: `python -m tests.benchmarks.bench_state_resolution [--members N ...]`.

Two forks of a room that changes the power levels, bans 1 % of the members and changes every
member, on both sides: nearly everything conflicts. Beside it one conflict in the same room, whole
and as deltas of an indexed state, and the plain cost of checking member events.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from federation.events import Event
from federation.room_versions import get_room_version
from resync.auth import check_auth_rules, select_auth_events
from resync.state import IndexedState, resolve, resolve_deltas, v2
from tests.histories import make_event
from tests.interop.synapse_oracle import SynapseOracle
from tests.interop.synapse_server import SynapseError, synapse_python

State = dict[tuple[str, str], str]
CREATOR = "@creator:example.org"
MODERATOR = "@moderator:example.org"
PHASES = {
    "find_full_conflicted_set": "auth difference and full conflicted set",
    "sort_power_events": "reverse topological power ordering",
    "iterative_auth_checks": "iterative auth checks",
    "sort_by_mainline": "mainline ordering",
}


@dataclass
class Fork:
    """One branch of a room."""

    state: State
    timestamp: int


class Room:
    """A room that grows by one state event at a time, with real event ids."""

    def __init__(self, room_version: str) -> None:
        self.version = get_room_version(room_version)
        self.events: dict[str, Event] = {}
        self.room_id = "!room:example.org"

    def add(
        self, fork: Fork, sender: str, event_type: str, content: dict[str, Any], state_key: str
    ) -> Event:
        pdu = {"type": event_type, "sender": sender, "content": content, "state_key": state_key}
        names_its_room = event_type == "m.room.create" and self.version.room_id_is_create_hash
        event = make_event(
            self.version.identifier,
            "" if names_its_room else self.room_id,
            sender,
            event_type,
            content,
            state_key=state_key,
            auth_events=select_auth_events(self.version, pdu, fork.state),  # type: ignore[arg-type]
            prev_events=list(islice(fork.state.values(), 1)),
            depth=len(self.events) + 1,
            origin_server_ts=fork.timestamp,
        )
        self.room_id = event.room_id
        self.events[event.event_id] = event
        fork.timestamp += 1
        fork.state[event_type, state_key] = event.event_id
        return event


def make_room(room_version: str, members: int) -> tuple[Room, Fork]:
    """A public room with `members` members, a creator and a moderator."""
    room, fork = Room(room_version), Fork({}, 1_000_000)
    room.add(fork, CREATOR, "m.room.create", create_content(room), "")
    room.add(fork, CREATOR, "m.room.member", {"membership": "join"}, CREATOR)
    room.add(fork, CREATOR, "m.room.power_levels", power_levels(room, 0), "")
    room.add(fork, CREATOR, "m.room.join_rules", {"join_rule": "public"}, "")
    for user in [MODERATOR, *map(member, range(members))]:
        room.add(fork, user, "m.room.member", {"membership": "join"}, user)
    return room, fork


def make_branch(room: Room, trunk: Fork, members: int, side: int) -> Fork:
    """A fork that changes power levels, bans one member in a hundred and changes all others."""
    fork = Fork(dict(trunk.state), trunk.timestamp + side)
    room.add(fork, CREATOR, "m.room.power_levels", power_levels(room, 1 + side), "")
    for number in range(members):
        user = member(number)
        if number % 100 == 50 * side:
            room.add(fork, MODERATOR, "m.room.member", {"membership": "ban"}, user)
        else:
            profile = {"membership": "join", "displayname": f"side {side}"}
            room.add(fork, user, "m.room.member", profile, user)
    room.add(fork, CREATOR, "m.room.power_levels", power_levels(room, 3 + side), "")
    return fork


def member(number: int) -> str:
    return f"@member{number}:server{number % 100}.example.org"


def create_content(room: Room) -> dict[str, Any]:
    return {"creator": CREATOR, "room_version": room.version.identifier}


def power_levels(room: Room, change: int) -> dict[str, Any]:
    users = {MODERATOR: 50, "@other:example.org": change}
    if not room.version.creators_outrank_power_levels:
        users[CREATOR] = 100
    return {"users": users, "invite": 0, "ban": 50}


@contextmanager
def timed_phases() -> Iterator[dict[str, float]]:
    """Seconds spent in each phase of `resync.state.v2` while the context lasts."""
    seconds = dict.fromkeys(PHASES, 0.0)
    originals = {name: getattr(v2, name) for name in PHASES}
    for name, function in originals.items():
        setattr(v2, name, _timed(function, name, seconds))
    try:
        yield seconds
    finally:
        for name, function in originals.items():
            setattr(v2, name, function)


def _timed(
    function: Callable[..., Any], name: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args)
        finally:
            seconds[name] += time.perf_counter() - start

    return call


def best_of(function: Callable[[], Any], repeat: int) -> float:
    """The least of `repeat` times, in seconds."""
    times = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_memory(function: Callable[[], Any]) -> int:
    """The most that `function` has allocated at any time, in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def compare_with_synapse(room: Room, states: list[State], repeat: int) -> None:
    """The same resolution by Synapse, in its own environment, in turn with ours."""
    version = room.version.identifier
    with SynapseOracle() as synapse:
        synapse.load_room(version, room.events.values())
        ratios = []
        for _ in range(repeat):
            gc.collect()
            start = time.perf_counter()
            resolved = resolve(version, states, room.events)
            ours = time.perf_counter() - start
            (theirs,) = synapse.time_resolution(states, repeat=1)
            ratios.append(theirs / ours)
            print(f"    in turn: Synapse {theirs:.3f} s, ours {ours:.3f} s: {ratios[-1]:.1f} times")
        same = synapse.resolve(states).state == resolved
    print(f"    median {statistics.median(ratios):.1f} times as fast; results equal: {same}")


def bench(room_version: str, members: int, repeat: int, *, compare: bool) -> None:
    room, trunk = make_room(room_version, members)
    single = Fork(dict(trunk.state), trunk.timestamp)
    room.add(single, CREATOR, "m.room.topic", {"topic": "one"}, "")
    other = Fork(dict(trunk.state), trunk.timestamp)
    room.add(other, CREATOR, "m.room.topic", {"topic": "two"}, "")
    left, right = (make_branch(room, trunk, members, side) for side in (0, 1))
    events = room.events

    def resolve_forks() -> State:
        return resolve(room_version, [left.state, right.state], events)

    conflicted = sum(2 for key, event_id in left.state.items() if right.state.get(key) != event_id)
    seconds = best_of(resolve_forks, repeat)
    print(f"room version {room_version}, {members:,} members")
    print(
        f"  two forks, {conflicted:,} conflicted events: {seconds:.3f} s,"
        f" {seconds / conflicted * 1e6:.2f} µs each"
    )
    with timed_phases() as phases:
        start = time.perf_counter()
        resolve_forks()
        total = time.perf_counter() - start
    for name, label in PHASES.items():
        print(f"    {label:42} {phases[name]:.3f} s  {phases[name] / total:4.0%}")
    rest = total - sum(phases.values())
    print(f"    {'split of the states, and the rest':42} {rest:.3f} s  {rest / total:4.0%}")
    print(f"    peak memory {peak_memory(resolve_forks) / 2**20:.1f} MiB")
    if compare:
        compare_with_synapse(room, [left.state, right.state], repeat)

    states = [single.state, other.state]
    whole = best_of(lambda: resolve(room_version, states, events), repeat)
    index = IndexedState(trunk.state, {i: event.auth_event_ids for i, event in events.items()})
    key = ("m.room.topic", "")
    deltas = [{key: single.state[key]}, {key: other.state[key]}]
    first = best_of(lambda: resolve_deltas(room_version, index, deltas, events), 1)
    again = best_of(lambda: resolve_deltas(room_version, index, deltas, events), repeat)
    print(
        f"  one conflict: whole states {whole * 1e3:.2f} ms, as deltas {again * 1e6:.0f} µs"
        f" (building the index {first * 1e3:.0f} ms)"
    )


def bench_checks(room_version: str, count: int) -> None:
    """`count` member events against the same power levels."""
    room, trunk = make_room(room_version, count)
    fork = Fork(dict(trunk.state), trunk.timestamp)
    checks = []
    for number in range(count):
        user = member(number)
        if number % 2:
            event = room.add(fork, user, "m.room.member", {"membership": "join"}, user)
        else:
            event = room.add(fork, MODERATOR, "m.room.member", {"membership": "ban"}, user)
        checks.append(event)
    auth_state = {event.key: event for event in map(room.events.__getitem__, trunk.state.values())}

    def check_all() -> None:
        for event in checks:
            check_auth_rules(event, auth_state)

    seconds = best_of(check_all, 3)
    print(f"room version {room_version}: {count:,} member events checked in {seconds:.3f} s,")
    print(f"  {seconds / count * 1e6:.2f} µs each")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[1_000, 20_000, 200_000])
    parser.add_argument("--room-version", nargs="+", default=["10", "12"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--compare-at",
        type=int,
        default=20_000,
        help="the size at which Synapse resolves the same states, if SYNAPSE_PYTHON has it",
    )
    options = parser.parse_args(arguments)
    try:
        synapse_python()
        has_synapse = True
    except SynapseError as missing:
        has_synapse = False
        print(f"not compared with Synapse: {missing}")
    for room_version in options.room_version:
        bench_checks(room_version, 50_000)
        for members in options.members:
            compare = has_synapse and members == options.compare_at
            bench(room_version, members, options.repeat, compare=compare)


if __name__ == "__main__":
    main()
