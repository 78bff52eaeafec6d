"""The one way in which an event fails the authorisation rules."""

from __future__ import annotations

from federation.room_versions import RoomVersion
from resync.auth.rule_numbers import Rule, rule_number


class NotAuthorised(Exception):
    """An authorisation rule rejects the event.

    Attributes:
        rule: the number of the rule on the page of the event's room version, such as "5.3.1".
        reason: what is wrong, to be shown to an operator as it is.
    """

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"authorisation rule {rule}: {reason}")
        self.rule = rule
        self.reason = reason


def rejected_by(rule: Rule, version: RoomVersion, reason: str) -> NotAuthorised:
    """The error for `rule`, with the number it has in this room version."""
    return NotAuthorised(rule_number(rule, version), reason)
