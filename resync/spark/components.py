"""Which events of one resolution have nothing to do with each other. Pure; needs no Spark.

When the power events are settled, the check of each remaining event reads the settled entries and
the entries of the users it names: its sender, its state key, who authorised it. Two events matter
to each other only if one of them may set an entry that the other reads or sets too. What is
connected in this way has to be checked in order; everything else can be checked at the same time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from federation.events import Event
from resync.auth import auth_types_for_event
from resync.state.conflicts import Key


def connected_components(events: Iterable[Event]) -> list[list[Event]]:
    """Events, parted into groups of which none reads what another may set.

    Entries that no event of these sets do not connect: a moderator who invites a thousand users
    connects them only if the moderator's own membership is among what is to be checked.

    Args:
        events: state events. Their order within each group is kept.

    Returns:
        The groups, the largest first.
    """
    events = list(events)
    written: set[Key] = {(event.type, event.state_key or "") for event in events}
    joined = _DisjointSets()
    for event in events:
        if not _names_only_its_sender(event):
            own = (event.type, event.state_key or "")
            for key in auth_types_for_event(event):
                if key in written and key != own:
                    joined.unite(own, key)
    groups: dict[Key, list[Event]] = {}
    for event in events:
        root = joined.root((event.type, event.state_key or ""))
        group = groups.get(root)
        if group is None:
            groups[root] = [event]
        else:
            group.append(event)
    return sorted(groups.values(), key=len, reverse=True)


def spread(components: Sequence[Sequence[Event]], bins: int) -> list[list[Event]]:
    """Components in at most `bins` bins of about the same size.

    The largest go first, each to the bin that is emptiest, so that one giant component has a bin
    to itself while the small ones share the others.
    """
    placed = spread_sizes([len(component) for component in components], bins)
    return [[event for position in one for event in components[position]] for one in placed]


def spread_sizes(sizes: Sequence[int], bins: int) -> list[list[int]]:
    """The positions of `sizes`, in at most `bins` bins of about the same total size."""
    filled: list[list[int]] = [[] for _ in range(min(bins, len(sizes)))]
    totals = [(0, number) for number in range(len(filled))]
    for position in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        total, number = totals[0]
        filled[number].append(position)
        heapq.heapreplace(totals, (total + sizes[position], number))
    return filled


def keys_read(events: Iterable[Event]) -> set[Key]:
    """Every entry that the checks of `events` may read or set."""
    keys: set[Key] = {("m.room.create", "")}
    for event in events:
        keys.update(auth_types_for_event(event))
        if event.state_key is not None:
            keys.add((event.type, event.state_key))
    return keys


def _names_only_its_sender(event: Event) -> bool:
    """Whether it is a user's own membership that nobody else had a hand in: nearly all are."""
    return (
        event.type == "m.room.member"
        and event.state_key == event.sender
        and "join_authorised_via_users_server" not in event.content
        and event.content.get("membership") != "invite"
    )


class _DisjointSets:
    """Union by size with path halving; an entry that was never united is alone."""

    def __init__(self) -> None:
        self._parents: dict[Key, Key] = {}
        self._sizes: dict[Key, int] = {}

    def root(self, key: Key) -> Key:
        parents = self._parents
        parent = parents.get(key)
        while parent is not None:
            grandparent = parents.get(parent)
            if grandparent is None:
                return parent
            parents[key] = grandparent
            key, parent = grandparent, parents.get(grandparent)
        return key

    def unite(self, one: Key, other: Key) -> None:
        one, other = self.root(one), self.root(other)
        if one == other:
            return
        size_one, size_other = self._sizes.get(one, 1), self._sizes.get(other, 1)
        if size_one < size_other:
            one, other = other, one
        self._parents[other] = one
        self._sizes[one] = size_one + size_other
