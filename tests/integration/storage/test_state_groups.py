"""State groups: the state they stand for, and the length of their chains."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from federation.events import StateKey
from storage import state_groups
from storage.database import Database
from storage.errors import UnknownStateGroup
from storage.state_groups import MAX_CHAIN, NewStateGroup

ROOM = "!room:example.com"
KEYS = [StateKey("m.t", str(n)) for n in range(6)]
DELTAS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from("abc"), max_size=4)


def _chain_lengths(connection: Connection, groups: list[int]) -> list[int]:
    loaded = state_groups.load_state_groups(connection, groups)
    lengths = []
    for group in groups:
        length, current = 0, group
        while current is not None:
            length += 1
            current = loaded[current].prev_group
        lengths.append(length)
    return lengths


@settings(
    max_examples=40,
    deadline=None,
    # Examples may share a database: each creates groups of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(st.tuples(st.integers(0, 10), st.booleans(), DELTAS), max_size=12),
    batches=st.integers(1, 4),
)
def test_groups_are_what_their_deltas_say(
    any_database: Database, steps: list, batches: int
) -> None:
    """Random trees of groups, created in batches, against dictionaries."""

    def check(connection: Connection) -> None:
        model: list[dict] = []
        ids: list[int] = []
        for batch in range(batches):
            new: list[NewStateGroup] = []
            for position, (choice, in_full, delta) in enumerate(steps):
                prev: int | NewStateGroup | None = None
                before: dict = {}
                if not in_full and model:
                    index = choice % len(model)
                    before = model[index]
                    prev = ids[index] if index < len(ids) else new[index - len(ids)]
                model.append({**before, **delta})
                new.append(NewStateGroup(f"$event{batch}/{position}", prev, delta))
            ids += state_groups.create_state_groups(connection, ROOM, new)
        assert len(set(ids)) == len(ids)
        for group, expected in zip(ids, model, strict=True):
            assert state_groups.load_state(connection, group) == expected

    any_database.run_sync(check)


@pytest.mark.parametrize(("batch_size", "total"), [(1, 250), (40, 1000), (1000, 1000)])
async def test_chains_are_bounded(database: Database, batch_size: int, total: int) -> None:
    """Many changes to a room of 300 entries: no long chain, and few copies."""
    randomness = random.Random(batch_size)
    base = {StateKey("m.room.member", f"@u{n}:x"): f"$start{n}" for n in range(300)}

    def write(connection: Connection) -> tuple[list[int], list[dict]]:
        group = state_groups.create_state_group(
            connection, ROOM, "$base", prev_group=None, delta=base
        )
        ids, states, state = [group], [dict(base)], dict(base)
        count = 0
        while count < total:
            new: list[NewStateGroup] = []
            for _ in range(min(batch_size, total - count)):
                count += 1
                key = randomness.choice(list(base))
                state = {**state, key: f"$change{count}"}
                states.append(state)
                new.append(
                    NewStateGroup(f"$e{count}", new[-1] if new else ids[-1], {key: state[key]})
                )
            ids += state_groups.create_state_groups(connection, ROOM, new)
        return ids, states

    def check(connection: Connection) -> None:
        assert max(_chain_lengths(connection, ids)) <= MAX_CHAIN
        for position in (0, 1, 99, 100, 101, 200, total // 2, total):
            assert state_groups.load_state(connection, ids[position]) == states[position]
        rows = connection.execute(text("SELECT count(*) FROM state_groups_state")).scalar_one()
        # 300 entries at the start, and every change copied a few times: not 300 per group.
        assert rows < 300 + 8 * total
        assert (
            connection.execute(text("SELECT count(*) FROM state_groups")).scalar_one() == total + 1
        )

    ids, states = await database.run(write)
    await database.run(check)


async def test_a_chain_of_large_changes_is_stored_in_full_at_times(database: Database) -> None:
    def check(connection: Connection) -> None:
        group = state_groups.create_state_group(
            connection, ROOM, "$0", prev_group=None, delta={KEYS[0]: "$0"}
        )
        ids, state = [group], {KEYS[0]: "$0"}
        for n in range(1, 250):
            delta = dict.fromkeys(KEYS[1:], f"${n}")
            state |= delta
            ids.append(
                state_groups.create_state_group(
                    connection, ROOM, f"${n}", prev_group=ids[-1], delta=delta
                )
            )
        assert max(_chain_lengths(connection, ids)) <= MAX_CHAIN
        assert state_groups.load_state(connection, ids[-1]) == state

    await database.run(check)


async def test_whole_chains_are_loaded(database: Database) -> None:
    def check(connection: Connection) -> None:
        def create(prev: int | None, **delta: str) -> int:
            return state_groups.create_state_group(
                connection,
                ROOM,
                "$e",
                prev_group=prev,
                delta={StateKey("t", key): value for key, value in delta.items()},
            )

        root = create(None, a="1")
        left = create(root, b="2")
        right = create(root, c="3")
        create(None, unrelated="4")
        loaded = state_groups.load_state_groups(connection, [left, right])
        assert loaded == {
            root: (root, None, {("t", "a"): "1"}),
            left: (left, root, {("t", "b"): "2"}),
            right: (right, root, {("t", "c"): "3"}),
        }
        assert state_groups.load_state_groups(connection, []) == {}

    await database.run(check)


async def test_unknown_groups(database: Database) -> None:
    with pytest.raises(UnknownStateGroup, match="12345"):
        await database.run(state_groups.load_state, 12345)
    with pytest.raises(UnknownStateGroup):
        await database.run(state_groups.create_state_group, ROOM, "$e", prev_group=12345, delta={})
