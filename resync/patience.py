"""How often a room is tried again for events that may yet pass the checks.

A key that cannot be had because a notary is away, or events that a server delivers wrongly, are
reasons to come back. They are no reason to come back for ever: servers die and take their keys with
them, and a room must not stay partial because of one.
"""

from __future__ import annotations

from dataclasses import dataclass

ATTEMPTS = 3
"""Attempts to finish a room that such events may fail before they are given up."""
PARENT_ATTEMPTS = 8
"""The same for unknown parents: servers that are away for now may have them, and what has no other
parent is rejected without. With the default waits this is about twenty minutes."""


@dataclass(slots=True)
class Patience:
    """What one attempt to finish a room has of it.

    Attributes:
        failed_attempts: how many attempts such events have failed already.
        is_spent: whether they have failed this one.
    """

    failed_attempts: int
    is_spent: bool = False

    @property
    def is_left(self) -> bool:
        """Whether this attempt is to fail rather than to give such events up."""
        return self.failed_attempts < ATTEMPTS

    @property
    def is_left_for_parents(self) -> bool:
        """The same for parents of events that servers of the room say they do not know."""
        return self.failed_attempts < PARENT_ATTEMPTS

    def spend(self) -> None:
        """To be called when such events fail the attempt."""
        self.is_spent = True


def no_patience() -> Patience:
    """For a question that is not asked again."""
    return Patience(ATTEMPTS)
