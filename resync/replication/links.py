"""What the ways to readers need of the publisher, and the publisher of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from resync.replication.commands import Command


class Source(Protocol):
    """What a new reader is told: the publisher, to its links."""

    def positions(self) -> Sequence[Command]:
        """One `POSITION` per stream and writer: rows were announced up to there."""
        ...

    def take_held(self) -> Sequence[Command]:
        """The rows that no reader was there for, behind the positions they begin at."""
        ...


class Link(Protocol):
    """A way to readers, the TCP server or Redis: to the publisher."""

    def has_readers(self) -> bool:
        """Whether what is sent now can reach anybody."""
        ...

    def send(self, commands: Sequence[Command], *, relayed: bool) -> None:
        """Send to all readers, in order, without waiting.

        `relayed`: these are the rows of another living process, which announces them too.
        """
        ...

    async def ready(self) -> None:
        """Wait until readers have taken most of what was sent; slow ones are not waited for."""
        ...
