"""The end of a resync: nothing is partial any more, so the current state can be worked out.

Source: design, section 3, step 4.
"""

from __future__ import annotations

import asyncio

from federation.events import StateKey
from resync.admin.metrics import Metrics
from resync.room_writer import RoomWriter
from resync.walk.recheck import resolve_states
from resync.walk.walk import WalkResult
from storage import extremities, state_groups
from storage.database import Database


async def complete_room(
    room_id: str,
    room_version: str,
    walked: WalkResult,
    *,
    database: Database,
    writer: RoomWriter,
    metrics: Metrics,
) -> None:
    """Resolves the current state over the forward extremities and makes the room fully stated.

    Raises:
        RoomStillPartial, RoomChanged: events arrived meanwhile; the room is walked again.
        LeaseLost: another worker has the room.
    """
    latest = await database.read(extremities.load_forward_extremities, room_id)
    unknown = [event_id for event_id in latest if event_id not in walked.states_after]
    groups = await database.read(state_groups.load_event_state_groups, unknown)
    parents = [
        walked.states_after[event_id] for event_id in latest if event_id in walked.states_after
    ]
    for event_id, group in groups.items():
        full = await database.read(state_groups.load_state, group)
        parents.append(await asyncio.to_thread(walked.states.adopt, full, event_id, group_id=group))

    def resolve() -> dict[StateKey, str]:
        # The current state belongs to no event; the room id stands in for one.
        current = resolve_states(room_version, walked.states, parents, walked.cache, room_id)
        return walked.states.full(current)

    with metrics.stage("resolve"):
        state = await asyncio.to_thread(resolve)
    with metrics.stage("store"):
        await writer.complete(state, latest, walked.given_up)
