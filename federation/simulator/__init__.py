"""A resident homeserver over real HTTPS on loopback, for the demo, tests and benchmarks."""

from federation.simulator.built_event import BuiltEvent
from federation.simulator.federation import SimulatedFederation
from federation.simulator.history import ConflictingForks, UnknownReference
from federation.simulator.identity import Identities, ServerIdentity, derive_identity
from federation.simulator.population import (
    ALL_JOINED,
    Mix,
    fork_and_merge,
    long_history,
    populate,
)
from federation.simulator.resident import ENDPOINTS, Resident
from federation.simulator.room import RoomBuilder

__all__ = [
    "ALL_JOINED",
    "ENDPOINTS",
    "BuiltEvent",
    "ConflictingForks",
    "Identities",
    "Mix",
    "Resident",
    "RoomBuilder",
    "ServerIdentity",
    "SimulatedFederation",
    "UnknownReference",
    "derive_identity",
    "fork_and_merge",
    "long_history",
    "populate",
]
