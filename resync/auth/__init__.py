"""The authorisation rules of room versions 1 to 12. Pure: values in, a verdict out."""

from resync.auth.errors import NotAuthorised
from resync.auth.rules import check_auth_events, check_auth_rules
from resync.auth.selection import (
    auth_types,
    auth_types_for_event,
    select_auth_events,
    state_needed_for_event,
)

__all__ = [
    "NotAuthorised",
    "auth_types",
    "auth_types_for_event",
    "check_auth_events",
    "check_auth_rules",
    "select_auth_events",
    "state_needed_for_event",
]
