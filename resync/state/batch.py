"""State resolution as a batch of problems, so that the engine that solves them can be chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from federation.events import Event
from resync.state.conflicts import Key
from resync.state.resolve import resolve_deltas


class Problem(NamedTuple):
    """States of one room to resolve: the arguments of `resync.state.resolve_deltas`."""

    room_version: str
    base: Mapping[Key, str]
    deltas: Sequence[Mapping[Key, str | None]]
    events: Mapping[str, Event]
    rejected: Collection[str] = ()


class Resolver(Protocol):
    """Resolves states; blocks, so it is used from threads."""

    def resolve_batch(self, problems: Sequence[Problem]) -> list[dict[Key, str | None]]:
        """`resolve_deltas` of each problem, which are independent of each other."""


class InProcessResolver:
    """The resolver of this process."""

    def resolve_batch(self, problems: Sequence[Problem]) -> list[dict[Key, str | None]]:
        """One after the other."""
        return [
            resolve_deltas(p.room_version, p.base, p.deltas, p.events, rejected=p.rejected)
            for p in problems
        ]
