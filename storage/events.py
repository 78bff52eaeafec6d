"""Events: the questions asked of them and what is stored of them, in one place for callers."""

from storage.event_reader import (
    StateEntry,
    StoredEvent,
    find_in_graph,
    find_known,
    find_of_other_rooms,
    load_auth_chain,
    load_events,
    load_rejections,
    load_senders,
    load_state_entries,
)
from storage.event_rows import unstorable_reason
from storage.event_writer import (
    GraphEvent,
    insert_event,
    insert_graph_events,
    insert_outliers,
    next_stream_orderings,
    set_rejections,
)
from storage.extremities import load_backward_extremities, load_forward_extremities

__all__ = [
    "GraphEvent",
    "StateEntry",
    "StoredEvent",
    "find_in_graph",
    "find_known",
    "find_of_other_rooms",
    "insert_event",
    "insert_graph_events",
    "insert_outliers",
    "load_auth_chain",
    "load_backward_extremities",
    "load_events",
    "load_forward_extremities",
    "load_rejections",
    "load_senders",
    "load_state_entries",
    "next_stream_orderings",
    "set_rejections",
    "unstorable_reason",
]
