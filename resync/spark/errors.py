"""What can go wrong with Spark. None of it stops a room: the work is then done in process."""

from __future__ import annotations

from resync.errors import ResyncError


class SparkUnavailable(ResyncError):
    """There is no session, for now or for good; the message says why."""


class SparkJobFailed(ResyncError):
    """A job failed, and failed again when it was retried."""


class SparkJobCancelled(ResyncError):
    """A job was stopped because nobody wants its result any more."""
