"""State groups: states of rooms, each stored as what it adds to or overwrites in another.

A group's *chain* is the group, its previous group, and so on down to one that is stored in full.
A chain has at most `MAX_CHAIN` groups: one that would be longer is shortened by building the new
group on an ancestor, with everything that changed since. Deltas cannot express that an entry
disappears: such a state is stored in full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, text

from federation.events import StateKey
from storage import bulk
from storage.errors import UnknownStateGroup
from storage.schema import (
    event_to_state_groups,
    events,
    room_memberships,
    state_group_edges,
    state_groups,
    state_groups_state,
)

StateMap = Mapping[StateKey, str]
"""State: `(type, state_key)` to event id."""

MAX_CHAIN = 100
"""Groups in a chain, at most."""


class StateGroup(NamedTuple):
    """A group as it is stored; without `prev_group`, `delta` is the full state."""

    id: int
    prev_group: int | None
    delta: dict[StateKey, str]


class NewStateGroup(NamedTuple):
    """A group to create.

    Attributes:
        event_id: the event it is created for.
        prev: what `delta` builds on: the id of a stored group, another new group of the same
            call that comes earlier, or None when `delta` is the full state.
        delta: what it adds to or overwrites in `prev`.
    """

    event_id: str
    prev: int | NewStateGroup | None
    delta: StateMap


def create_state_group(
    connection: Connection,
    room_id: str,
    event_id: str,
    *,
    prev_group: int | None,
    delta: StateMap,
) -> int:
    """Create one group; see `create_state_groups`, which is the faster way to create several."""
    (group,) = create_state_groups(
        connection, room_id, [NewStateGroup(event_id, prev_group, delta)]
    )
    return group


def create_state_groups(
    connection: Connection, room_id: str, groups: Sequence[NewStateGroup]
) -> list[int]:
    """Create `groups`, each after the one it builds on, and return their ids.

    Raises:
        UnknownStateGroup: a stored `prev` does not exist.
    """
    stored = {group.prev for group in groups if isinstance(group.prev, int)}
    chains = _Chains(connection, stored)
    new_ids = _next_ids(connection, len(groups))
    ids_of: dict[int, int] = {}
    written: list[StateGroup] = []
    for group, group_id in zip(groups, new_ids, strict=True):
        prev = group.prev
        prev_id = ids_of[id(prev)] if isinstance(prev, NewStateGroup) else prev
        written.append(chains.add(group_id, prev_id, group.delta))
        ids_of[id(group)] = group_id
    bulk.insert(
        connection,
        state_groups,
        ("id", "room_id", "event_id"),
        [
            (group_id, room_id, group.event_id)
            for group, group_id in zip(groups, new_ids, strict=True)
        ],
    )
    bulk.insert(
        connection,
        state_group_edges,
        ("state_group", "prev_state_group"),
        [(group.id, group.prev_group) for group in written if group.prev_group is not None],
    )
    bulk.insert(
        connection,
        state_groups_state,
        ("state_group", "room_id", "type", "state_key", "event_id"),
        [
            (group.id, room_id, key[0], key[1], event_id)
            for group in written
            for key, event_id in group.delta.items()
        ],
    )
    return new_ids


def load_state(connection: Connection, group: int) -> dict[StateKey, str]:
    """The full state of a group.

    Raises:
        UnknownStateGroup: there is none.
    """
    chain = _load_chains(connection, [group])
    deltas = _load_deltas(connection, chain)
    state: dict[StateKey, str] = {}
    for member in reversed(_chain_of(chain, group)):
        state.update(deltas[member])
    return state


def find_with_member(
    connection: Connection, groups: Collection[int], server: str, memberships: Collection[str]
) -> set[int]:
    """Those of `groups` in whose state a user of `server` has one of `memberships`.

    Only the members of that server are loaded, in a number of queries that is fixed.
    """
    chains = _load_chains(connection, groups)
    table = state_groups_state
    rows = connection.execute(
        select(table.c.state_group, table.c.state_key, room_memberships.c.membership)
        .outerjoin(room_memberships, room_memberships.c.event_id == table.c.event_id)
        .where(
            bulk.is_in(connection, table.c.state_group, chains),
            table.c.type == "m.room.member",
            table.c.state_key.endswith(f":{server}", autoescape=True),
        )
    )
    deltas: dict[int, dict[str, str | None]] = {}
    for group, user_id, membership in rows:
        if user_id.partition(":")[2] == server:
            deltas.setdefault(group, {})[user_id] = membership
    found = set()
    for group in groups:
        members: dict[str, str | None] = {}
        for ancestor in reversed(_chain_of(chains, group)):
            members.update(deltas.get(ancestor, {}))
        if any(membership in memberships for membership in members.values()):
            found.add(group)
    return found


def load_state_groups(connection: Connection, groups: Collection[int]) -> dict[int, StateGroup]:
    """`groups` and every group in their chains, by id.

    Raises:
        UnknownStateGroup: one of `groups` does not exist.
    """
    chains = _load_chains(connection, groups)
    deltas = _load_deltas(connection, chains)
    return {group: StateGroup(group, prev, deltas[group]) for group, prev in chains.items()}


def load_event_state_groups(
    connection: Connection, event_ids: Collection[str], *, room_id: str | None = None
) -> dict[str, int]:
    """The state group after each of `event_ids` that has one.

    Args:
        room_id: leaves out the events of other rooms, which strangers may name as parents.
    """
    table = event_to_state_groups
    query = select(table.c.event_id, table.c.state_group).where(
        bulk.is_in(connection, table.c.event_id, event_ids)
    )
    if room_id is not None:
        query = query.join(events, events.c.event_id == table.c.event_id).where(
            events.c.room_id == room_id
        )
    rows = connection.execute(query)
    return {row.event_id: row.state_group for row in rows}


def set_event_state_groups(connection: Connection, groups: Mapping[str, int]) -> None:
    """Set the state group after each event, in place of the one it had."""
    table = event_to_state_groups
    connection.execute(delete(table).where(bulk.is_in(connection, table.c.event_id, groups)))
    bulk.insert(connection, table, ("event_id", "state_group"), sorted(groups.items()))


class _Chains:
    """The chains that new groups build on; sizes and deltas are loaded when one is full."""

    def __init__(self, connection: Connection, groups: Collection[int]) -> None:
        self._connection = connection
        self._prev = _load_chains(connection, groups)
        self._sizes: dict[int, int] = {}
        self._deltas: dict[int, Mapping[StateKey, str]] = {}
        self._lengths: dict[int, int] = {}

    def add(self, group: int, prev: int | None, delta: StateMap) -> StateGroup:
        """The new group as it is to be stored, so that its chain keeps within the bound."""
        stored = StateGroup(group, prev, {StateKey(*key): value for key, value in delta.items()})
        if prev is not None and self._length(prev) >= MAX_CHAIN:
            stored = self._shortened(stored, prev)
        self._prev[group] = stored.prev_group
        self._sizes[group] = len(stored.delta)
        self._deltas[group] = stored.delta
        return stored

    def _shortened(self, group: StateGroup, prev: int) -> StateGroup:
        """The same state on an ancestor whose delta is at least as large as what changed since.

        Deltas then get smaller towards the end of a chain, as the levels of a log-structured
        merge tree do, so that an entry is copied a few times and not once per group.
        """
        chain = _chain_of(self._prev, prev)
        self._load_sizes(chain)
        self._load_deltas(chain[:-1])
        delta = dict(group.delta)
        for position, member in enumerate(chain):
            if position > 0 and len(delta) <= self._sizes[member]:
                return StateGroup(group.id, member, delta)
            self._load_deltas([member])
            for key, event_id in self._deltas[member].items():
                delta.setdefault(key, event_id)
        return StateGroup(group.id, None, delta)

    def _length(self, group: int) -> int:
        path = []
        current: int | None = group
        while current is not None and current not in self._lengths:
            path.append(current)
            current = self._prev[current]
        length = 0 if current is None else self._lengths[current]
        for member in reversed(path):
            length += 1
            self._lengths[member] = length
        return length

    def _load_sizes(self, groups: Collection[int]) -> None:
        missing = [group for group in groups if group not in self._sizes]
        self._sizes |= _load_sizes(self._connection, missing)

    def _load_deltas(self, groups: Collection[int]) -> None:
        missing = [group for group in groups if group not in self._deltas]
        if missing:
            self._deltas |= _load_deltas(self._connection, missing)


def _load_chains(connection: Connection, groups: Collection[int]) -> dict[int, int | None]:
    """The previous group of every group in the chains of `groups`."""
    first = (
        select(state_groups.c.id.label("id"))
        .where(bulk.is_in(connection, state_groups.c.id, groups))
        .cte("chain", recursive=True)
    )
    chain = first.union(
        select(state_group_edges.c.prev_state_group).join(
            first, state_group_edges.c.state_group == first.c.id
        )
    )
    rows = connection.execute(
        select(chain.c.id, state_group_edges.c.prev_state_group).outerjoin(
            state_group_edges, state_group_edges.c.state_group == chain.c.id
        )
    )
    loaded: dict[int, int | None] = {row.id: row.prev_state_group for row in rows}
    for group in groups:
        if group not in loaded:
            raise UnknownStateGroup(group)
    return loaded


def _chain_of(prev_groups: Mapping[int, int | None], group: int) -> list[int]:
    """The chain of `group`, itself first. Ends on a cycle, which only a broken database has."""
    chain: dict[int, None] = {}
    current: int | None = group
    while current is not None and current not in chain:
        chain[current] = None
        current = prev_groups[current]
    return list(chain)


def _load_deltas(connection: Connection, groups: Collection[int]) -> dict[int, dict[StateKey, str]]:
    deltas: dict[int, dict[StateKey, str]] = {group: {} for group in groups}
    table = state_groups_state
    rows = connection.execute(
        select(table.c.state_group, table.c.type, table.c.state_key, table.c.event_id).where(
            bulk.is_in(connection, table.c.state_group, deltas)
        )
    )
    for group, type_, state_key, event_id in rows:
        deltas[group][StateKey(type_, state_key)] = event_id
    return deltas


def _load_sizes(connection: Connection, groups: Collection[int]) -> dict[int, int]:
    table = state_groups_state
    rows = connection.execute(
        select(table.c.state_group, func.count())
        .where(bulk.is_in(connection, table.c.state_group, groups))
        .group_by(table.c.state_group)
    )
    return dict.fromkeys(groups, 0) | {row[0]: row[1] for row in rows}


def _next_ids(connection: Connection, count: int) -> list[int]:
    if connection.dialect.name == "postgresql":
        drawn = connection.execute(
            text("SELECT nextval('state_group_id_seq') FROM generate_series(1, :count)"),
            {"count": count},
        )
        return sorted(drawn.scalars())
    last = connection.scalar(text("SELECT coalesce(max(id), 0) FROM state_groups")) or 0
    return list(range(last + 1, last + 1 + count))
