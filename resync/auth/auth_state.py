"""What the authorisation rules ask of a room state."""

from __future__ import annotations

from typing import Protocol

from federation.events import Event

CREATE_KEY = ("m.room.create", "")
JOIN_RULES_KEY = ("m.room.join_rules", "")
POWER_LEVELS_KEY = ("m.room.power_levels", "")


class AuthState(Protocol):
    """A room state to check an event against. Every `Mapping` from state keys to events is one."""

    def get(self, key: tuple[str, str], /) -> Event | None:
        """The event of an entry, None if there is none."""
