"""The walks through the auth graph, on graphs drawn by hand and at random."""

from __future__ import annotations

import random

import pytest

from federation.events import Event
from federation.room_versions import ROOM_VERSIONS
from resync.state.auth_graph import AuthGraph, auth_difference, conflicted_state_subgraph


def graph(edges: dict[str, str], room_version: str = "2", create: str | None = None) -> AuthGraph:
    """A graph from `{"x": "y z"}`: x names y and z as auth events."""
    events = {}
    for event_id, auth_events in edges.items():
        pdu = {
            "type": "m.room.create" if event_id == create else "org.example",
            "sender": "@a:b",
            "content": {},
            "room_id": "!c",
            "state_key": "",
            "auth_events": auth_events.split(),
        }
        events[event_id] = Event.from_pdu(pdu, room_version, event_id=event_id)
    return AuthGraph(ROOM_VERSIONS[room_version], events, "!c")


def test_chains() -> None:
    drawn = graph({"a": "", "b": "a", "c": "a", "d": "b c", "e": ""})
    assert set(drawn.chain([])) == set()
    assert set(drawn.chain(["d"])) == set("abcd")
    assert set(drawn.chain(["b", "e"])) == set("abe")
    assert set(drawn.chain(["d", "e"], common={"b", "e"})) == set("dca")


def test_chains_run_in_circles_once() -> None:
    drawn = graph({"a": "c", "b": "a", "c": "b c", "d": "c"})
    assert set(drawn.chain(["d"])) == set("abcd")


def test_unknown_events_are_part_of_chains() -> None:
    drawn = graph({"a": "gone"})
    assert drawn.chain(["a"])["gone"] is None


def test_events_of_other_rooms_are_unknown() -> None:
    pdu = {"type": "t", "sender": "@a:b", "content": {}, "room_id": "!other"}
    events = {"a": Event.from_pdu(pdu, "10", event_id="a")}
    assert AuthGraph(ROOM_VERSIONS["10"], events, "!c").event("a") is None
    assert AuthGraph(ROOM_VERSIONS["10"], events, None).event("a") is not None


def test_in_version_12_everything_rests_on_the_create_event() -> None:
    edges = {"$c": "", "a": "", "b": "a"}
    for room_version, expected in (("11", {"a", "b"}), ("12", {"$c", "a", "b"})):
        drawn = graph(edges, room_version, create="$c")
        assert set(drawn.chain(["b"])) == expected
    event = drawn.event("a")
    assert event is not None
    assert drawn.auth_event_ids(event) == ("$c",)


@pytest.mark.parametrize(
    ("state_sets", "expected"),
    [
        (["d", "c"], "db"),
        (["d", "d"], ""),
        (["b", "c"], "bc"),
        (["b", "c", "d"], "bcd"),
        (["bc", "d"], "d"),
        (["d", ""], "abcd"),
    ],
)
def test_the_auth_difference(state_sets: list[str], expected: str) -> None:
    drawn = graph({"a": "", "b": "a", "c": "a", "d": "b c"})
    assert set(auth_difference(drawn, state_sets, frozenset())) == set(expected)


def test_what_is_common_is_not_in_the_difference() -> None:
    drawn = graph({"a": "", "b": "a", "c": "b", "d": ""})
    assert set(auth_difference(drawn, ["c", "d"], {"a", "b"})) == {"c", "d"}


@pytest.mark.parametrize(
    ("conflicted", "expected"),
    [
        ("a", "a"),
        ("ad", "abcd"),
        ("bc", "bc"),
        ("bd", "bd"),
        ("ae", "ae"),
        ("", ""),
        ("axe", "axe"),
    ],
)
def test_the_conflicted_state_subgraph(conflicted: str, expected: str) -> None:
    drawn = graph({"a": "", "b": "a", "c": "a", "d": "b c", "e": ""})
    assert set(conflicted_state_subgraph(drawn, conflicted)) == set(expected)


@pytest.mark.parametrize("seed", range(40))
def test_walks_agree_with_their_definitions(seed: int) -> None:
    """On random graphs, half of them with circles."""
    rng = random.Random(seed)
    ids = [f"n{number}" for number in range(25)]
    edges = {
        event_id: " ".join(
            rng.sample(ids if seed % 2 else ids[:number], min(number, rng.randrange(3)))
        )
        for number, event_id in enumerate(ids)
    }
    drawn = graph(edges)
    chains = {event_id: set(drawn.chain([event_id])) for event_id in ids}
    for event_id, chain in chains.items():
        assert chain == {event_id}.union(*(chains[cited] for cited in edges[event_id].split()))
    sets = [rng.sample(ids, rng.randrange(1, 4)) for _ in range(rng.choice((2, 3)))]
    full = [set().union(*(chains[i] for i in state_set)) for state_set in sets]
    difference = set(auth_difference(drawn, sets, frozenset()))
    assert difference == set().union(*full) - full[0].intersection(*full[1:])
    conflicted = {i for state_set in sets for i in state_set}
    subgraph = {
        i
        for i in set().union(*(chains[c] for c in conflicted))
        if chains[i] & conflicted and any(i in chains[c] for c in conflicted)
    }
    assert set(conflicted_state_subgraph(drawn, conflicted)) == subgraph


def test_100_000_deep() -> None:
    edges = {f"n{number}": f"n{number - 1}" if number else "" for number in range(100_000)}
    drawn = graph(edges)
    assert len(drawn.chain(["n99999"])) == 100_000
    assert len(conflicted_state_subgraph(drawn, ["n0", "n99999"])) == 100_000
