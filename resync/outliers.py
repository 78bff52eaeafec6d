"""Check 4 for events that come without their place in the room, and storing them as outliers.

Events of a `/state` answer arrive in any order, in batches, while the answer is still being sent.
Each is decided as soon as its auth events are, and stored with its verdict; what waits for an auth
event that has not come yet waits in memory.
Source: server-server API, "Checks performed on receipt of a PDU" (check 4), and "Rejection".
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from federation.events import Event
from federation.room_versions import RoomVersion
from resync.admin.metrics import Metrics
from resync.auth import NotAuthorised, check_auth_events, check_auth_rules
from storage import events as event_store
from storage.database import Database


@dataclass(frozen=True, slots=True)
class Verdict:
    """An event and the outcome of its auth checks; `rejection` is None when it is accepted."""

    event: Event
    rejection: str | None


def create_event_id(room_version: RoomVersion, room_id: str) -> str | None:
    """The id of the room's create event where the room id tells it (version 12, MSC4291)."""
    return "$" + room_id[1:] if room_version.room_id_is_create_hash else None


def auth_dependencies(event: Event) -> Collection[str]:
    """The events that have to be decided before `event`.

    Its auth events and, from version 12 on, the create event, which they do not name.
    """
    create_id = create_event_id(event.room_version, event.room_id)
    if create_id is None or create_id == event.event_id:
        return event.auth_event_ids
    return dict.fromkeys((*event.auth_event_ids, create_id))


def check_against_auth_events(event: Event, verdicts: Mapping[str, Verdict]) -> str | None:
    """Check 4: the auth rules, on the state that the event's own auth events make up.

    Args:
        event: the event to check.
        verdicts: at least its `auth_dependencies`.

    Returns:
        Why the event is rejected, or None.
    """
    auth_events = {
        event_id: verdicts[event_id].event
        for event_id in auth_dependencies(event)
        if event_id in verdicts
    }
    rejected = {event_id for event_id in auth_events if verdicts[event_id].rejection is not None}
    auth_state = {
        auth_event.key: auth_event for auth_event in auth_events.values() if auth_event.is_state
    }
    try:
        check_auth_events(event, auth_events, rejected)
        check_auth_rules(event, auth_state)
    except NotAuthorised as refusal:
        return str(refusal)
    return None


class AuthOrder:
    """Decides events in an order in which every auth event comes before those that name it.

    Pure bookkeeping: no recursion, and time linear in events and references. Events of a cycle
    (versions 1 and 2 can be made to have one) are never ready and stay in `waiting`.
    """

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self._waiting: dict[str, Event] = {}
        self._unmet: dict[str, int] = {}
        self._dependants: defaultdict[str, list[str]] = defaultdict(list)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self.verdicts or event_id in self._waiting

    @property
    def waiting(self) -> Mapping[str, Event]:
        """Events that have arrived and wait for an auth event."""
        return self._waiting

    def missing(self) -> set[str]:
        """Ids of events that others wait for and that have not arrived."""
        return {event_id for event_id in self._dependants if event_id not in self._waiting}

    def learn(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Takes verdicts from elsewhere (the database); returns those that follow from them."""
        ready: deque[str] = deque()
        for verdict in verdicts:
            self._settle(verdict, ready)
        return self._decide(ready)

    def add(self, events: Iterable[Event]) -> list[Verdict]:
        """Takes events that have arrived; returns the verdicts that can now be given, in order."""
        ready: deque[str] = deque()
        for event in events:
            if event.event_id in self:
                continue
            self._waiting[event.event_id] = event
            unmet = [
                event_id for event_id in auth_dependencies(event) if event_id not in self.verdicts
            ]
            if unmet:
                self._unmet[event.event_id] = len(unmet)
                for event_id in unmet:
                    self._dependants[event_id].append(event.event_id)
            else:
                ready.append(event.event_id)
        return self._decide(ready)

    def _decide(self, ready: deque[str]) -> list[Verdict]:
        decided: list[Verdict] = []
        while ready:
            event = self._waiting.pop(ready.popleft())
            verdict = Verdict(event, check_against_auth_events(event, self.verdicts))
            decided.append(verdict)
            self._settle(verdict, ready)
        return decided

    def _settle(self, verdict: Verdict, ready: deque[str]) -> None:
        event_id = verdict.event.event_id
        self.verdicts[event_id] = verdict
        for dependant in self._dependants.pop(event_id, ()):
            self._unmet[dependant] -= 1
            if self._unmet[dependant] == 0:
                del self._unmet[dependant]
                ready.append(dependant)


class OutlierAdmission:
    """Takes the checked events of one fetch, decides them and stores them as outliers."""

    def __init__(
        self,
        database: Database,
        *,
        instance_name: str,
        metrics: Metrics,
    ) -> None:
        self._database = database
        self._instance_name = instance_name
        self._metrics = metrics
        self._order = AuthOrder()
        self._asked: set[str] = set()
        self._unstored: list[Verdict] = []

    @property
    def waiting(self) -> Mapping[str, Event]:
        """Events that wait for an auth event."""
        return self._order.waiting

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """Everything decided or looked up so far."""
        return self._order.verdicts

    @property
    def unstored(self) -> int:
        """How many events are decided and not stored."""
        return len(self._unstored)

    def missing(self) -> set[str]:
        """Auth events that are neither stored nor among what was admitted."""
        return self._order.missing()

    async def admit(self, events: Sequence[Event]) -> int:
        """Decides what can be decided and stores it. Returns how many events were decided."""
        decided = await self.decide(events)
        await self.store()
        return decided

    async def decide(self, events: Sequence[Event]) -> int:
        """Decides what can be decided, for `store` to be called later. Returns how many."""
        with self._metrics.stage("auth"):
            decided = await asyncio.to_thread(self._order.add, events)
            # Only what the database may know is asked for, each id once, a query per batch.
            unknown = self._order.missing() - self._asked
            if unknown:
                self._asked |= unknown
                stored = await self._database.read(event_store.load_events, unknown)
                known = [Verdict(found.event, found.rejection_reason) for found in stored.values()]
                decided += await asyncio.to_thread(self._order.learn, known)
        self._unstored += decided
        return len(decided)

    async def store(self) -> None:
        """Stores what is decided so far, in one transaction.

        It does not wait for the disk: outliers that a power failure takes are fetched again.
        """
        decided, self._unstored = self._unstored, []
        if not decided:
            return
        rejections = {
            verdict.event.event_id: verdict.rejection
            for verdict in decided
            if verdict.rejection is not None
        }
        with self._metrics.stage("store"):
            await self._database.run_unflushed(
                event_store.insert_outliers,
                [verdict.event for verdict in decided],
                rejections=rejections,
                instance_name=self._instance_name,
                received_ts=int(time.time() * 1000),
            )
        self._metrics.events_checked("rejected", len(rejections))
