"""How often a room is tried again for what may yet be had, before it goes on without.

A key that cannot be had because a notary is away, or events that a server delivers wrongly, are
reasons to come back; so are parents that nobody knows. They are no reason to come back for ever:
servers die and take their keys with them, and a room must not stay partial because of one.
"""

from __future__ import annotations

from dataclasses import dataclass

EVENT_ATTEMPTS = 8
"""Attempts to finish a room that may fail for events whose checks may yet succeed. With the default
waits this is about twenty minutes: time to restart a notary."""
PARENT_ATTEMPTS = 8
"""The same for parents that no server knows; what has no other parent is rejected without."""
PARENT_ATTEMPTS_DURING_OUTAGE = 14
"""The same while a server that is likely to know them is away: about five hours."""


@dataclass(slots=True)
class Patience:
    """What one attempt to finish a room has left for one reason to fail.

    Attributes:
        attempts: how many may fail for it.
        failed: how many have failed already.
        is_spent: whether it has failed this one.
    """

    attempts: int
    failed: int
    is_spent: bool = False

    @property
    def is_left(self) -> bool:
        """Whether this attempt is to fail rather than to go on without."""
        return self.failed < self.attempts

    def spend(self) -> None:
        """To be called when this attempt fails for it."""
        self.is_spent = True


@dataclass(frozen=True, slots=True)
class RoomPatience:
    """The patience of one attempt. Each kind has its own: one cannot use up the other.

    Attributes:
        with_events: with events that may pass the checks in a later attempt.
        with_parents: with parents of events that servers of the room say they do not know.
    """

    with_events: Patience
    with_parents: Patience

    def is_left_for_parents(self, *, during_outage: bool) -> bool:
        """Whether this attempt is to fail rather than to give unknown parents up."""
        return self.with_parents.is_left or (
            during_outage and self.with_parents.failed < PARENT_ATTEMPTS_DURING_OUTAGE
        )


def make_patience(failed_for_events: int, failed_for_parents: int) -> RoomPatience:
    """The patience of an attempt, by how many have failed for each reason before."""
    return RoomPatience(
        Patience(EVENT_ATTEMPTS, failed_for_events), Patience(PARENT_ATTEMPTS, failed_for_parents)
    )


def no_patience() -> RoomPatience:
    """For a question that is not asked again."""
    return make_patience(EVENT_ATTEMPTS, PARENT_ATTEMPTS)
