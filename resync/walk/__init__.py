"""The walk: every event received since the partial join, oldest first, onto full state."""
