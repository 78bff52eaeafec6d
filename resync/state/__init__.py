"""State resolution v1, v2 and v2.1. Pure: states and events in, a state out."""

from resync.state.indexed_state import IndexedState
from resync.state.resolve import resolve, resolve_deltas

__all__ = ["IndexedState", "resolve", "resolve_deltas"]
