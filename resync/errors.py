"""The named errors of the work. Each message can be shown to an operator as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from federation.errors import FederationError


class ResyncError(Exception):
    """Anything that keeps a room from being finished for now."""


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """What one server answered, or that it did not.

    Attributes:
        is_unknown: it answers about the room, and does not know what was asked for.
        is_outage: it was not well, and may know.
    """

    server_name: str
    reason: str
    is_unknown: bool = False
    is_outage: bool = False

    def __str__(self) -> str:
        return f"{self.server_name}: {self.reason}"


class NoServerAnswered(ResyncError):
    """Every server that was asked failed or refused; the room waits and is tried again."""

    def __init__(self, what: str, failures: Sequence[ServerFailure]) -> None:
        shown = "; ".join(str(failure) for failure in failures[:3])
        more = f" (and {len(failures) - 3} more)" if len(failures) > 3 else ""
        super().__init__(f"no server could give {what}: {shown or 'none is known'}{more}")
        self.failures = tuple(failures)


class InvalidStateAnswer(FederationError):
    """A server's answer contradicts itself or what it said before; another server is asked."""


class IncompleteState(FederationError):
    """A server named far more state than it delivered; another server is asked."""


class KeysMissingForNow(ResyncError):
    """Events cannot be checked because somebody who may have the keys cannot be reached."""

    def __init__(self, what: str, events: int, reason: str) -> None:
        super().__init__(
            f"the keys for {events} events of {what} cannot be had for now, for example: {reason}; "
            "if that does not change soon, the room is finished without those events"
        )


class JoinFailed(ResyncError):
    """The join did not happen; nothing says that the room is partial."""


class ListenerFailed(ResyncError):
    """A listener cannot have the address that the config gives it."""

    def __init__(self, setting: str, bind: str, port: int, reason: OSError) -> None:
        super().__init__(
            f"cannot listen on {bind} port {port}: {reason.strerror or reason}; is another worker "
            f"running with this config? Else change {setting} in the config"
        )
