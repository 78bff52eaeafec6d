"""The split of several states into what they agree on and what they do not.

States are given as one base and what each of them changes, so that the work is proportional to
their differences and not to the size of the room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""`(type, state_key)`, a `StateKey` or the plain tuple."""


class Unconflicted:
    """The unconflicted state map: a base state with changes laid over it.

    Attributes:
        changes: where it differs from the base; None for a key that the base may have and the
            unconflicted state map has not.
    """

    __slots__ = ("_base", "changes")

    def __init__(self, base: Mapping[Key, str], changes: dict[Key, str | None]) -> None:
        self._base = base
        self.changes = changes

    def get(self, key: Key) -> str | None:
        """The event id of an entry, None if there is none."""
        if key in self.changes:
            return self.changes[key]
        return self._base.get(key)

    def event_ids(self) -> Iterator[str]:
        """The event ids of all entries. This one walks through the base."""
        changes = self.changes
        for key, event_id in self._base.items():
            if key not in changes:
                yield event_id
        yield from self.changed_event_ids()

    def changed_event_ids(self) -> Iterator[str]:
        """The event ids of the entries that are not the base's."""
        return (event_id for event_id in self.changes.values() if event_id is not None)

    def is_empty(self) -> bool:
        """Whether there is no entry at all."""
        return next(self.event_ids(), None) is None


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Several states, split.

    Attributes:
        unconflicted: the unconflicted state map.
        conflicted: for each conflicted key the event ids that states have there, each once. All
            of them together are the conflicted state set.
        state_sets: for each state its event ids under the conflicted keys. Equal ones once.
    """

    unconflicted: Unconflicted
    conflicted: dict[Key, tuple[str, ...]]
    state_sets: list[list[str]]


def split_conflicts(
    base: Mapping[Key, str],
    deltas: Sequence[Mapping[Key, str | None]],
    *,
    absence_conflicts: bool,
) -> Conflicts:
    """Split the states that `deltas` make of `base`.

    Version 2 and later ("Unconflicted state map and conflicted state set"): a key is unconflicted
    if it is present in every state with the same value. Version 1: a key is conflicted if states
    have different event ids for it, so a state that lacks the key has no say.

    Args:
        base: any state.
        deltas: for each state what it changes; None for an entry that it lacks.
        absence_conflicts: whether a state that lacks the key makes it conflicted.
    """
    keys = dict.fromkeys(key for delta in deltas for key in delta)
    changes: dict[Key, str | None] = {}
    conflicted: dict[Key, tuple[str, ...]] = {}
    state_sets: list[list[str]] = [[] for _ in deltas]
    for key in keys:
        of_base = base.get(key)
        values = [delta.get(key, of_base) for delta in deltas]
        agree = values.count(values[0]) == len(values)
        distinct = tuple(dict.fromkeys([v for v in values if v is not None]))
        if agree or (len(distinct) == 1 and not absence_conflicts):
            changes[key] = distinct[0] if distinct else None
            continue
        changes[key] = None
        conflicted[key] = distinct
        for state_set, event_id in zip(state_sets, values, strict=True):
            if event_id is not None:
                state_set.append(event_id)
    distinct_sets = {frozenset(state_set): state_set for state_set in state_sets}
    return Conflicts(Unconflicted(base, changes), conflicted, list(distinct_sets.values()))


def deltas_from_first(
    state_sets: Sequence[Mapping[Key, str]],
) -> list[dict[Key, str | None]]:
    """What each state changes in the first one: nothing for the first itself."""
    first = state_sets[0]
    deltas: list[dict[Key, str | None]] = [{}]
    for state_set in state_sets[1:]:
        delta: dict[Key, str | None] = {
            key: event_id for key, event_id in state_set.items() if first.get(key) != event_id
        }
        delta.update((key, None) for key in first if key not in state_set)
        deltas.append(delta)
    return deltas
