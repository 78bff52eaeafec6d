"""What can go wrong in the demo."""

from __future__ import annotations

from resync.errors import ResyncError


class DemoFailed(ResyncError):
    """The demo did not end as it must."""
