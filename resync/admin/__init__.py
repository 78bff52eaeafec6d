"""The admin HTTP listener: its API, the status page, health and metrics."""

from resync.admin.api import AdminApi, RoomService
from resync.admin.health import Health
from resync.admin.metrics import Metrics
from resync.admin.token import load_or_create_token

__all__ = ["AdminApi", "Health", "Metrics", "RoomService", "load_or_create_token"]
