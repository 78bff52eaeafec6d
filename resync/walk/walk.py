"""The walk over the events of one room that have only partial state.

The graph is loaded once and walked in memory; states at gaps are fetched ahead, with a bound;
what was found is committed in batches, each a transaction of its own, so that a crash loses at
most the batch in flight.
Source: faster joins, "Fixing the approximation with a resync"; design, section 3, step 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from federation.identifiers import domain_of
from resync.admin.metrics import Metrics
from resync.errors import NoServerAnswered, ResyncError
from resync.progress import Phase
from resync.room_to_fetch import RoomToFetch
from resync.room_writer import RoomWriter
from resync.state.batch import Resolver
from resync.state_fetch import FetchedState, Report, StateFetcher
from resync.walk.graph import WalkOrder, external_prev_events
from resync.walk.recheck import Rechecked, recheck_batch
from resync.walk.states import RoomState, RoomStates
from resync.walk.verdict_cache import VerdictCache
from storage import current_state, partial_state, state_groups
from storage import events as event_store
from storage.database import Database
from storage.partial_state import PartialEvent

logger = structlog.get_logger(__name__)

BATCH_SIZE = 500
"""Events that are rechecked and committed together."""
GAPS_AHEAD = 4
"""How many states are fetched at the same time."""


@dataclass(slots=True)
class WalkResult:
    """What a walk leaves for the completion of the room.

    Attributes:
        states: the states met.
        states_after: the state after each event that was walked and has no child that was.
        cache: the events looked at.
        given_up: events that no server could deliver, with the reason.
    """

    states: RoomStates
    states_after: dict[str, RoomState]
    cache: VerdictCache
    given_up: dict[str, str] = field(default_factory=dict)


class Walk:
    """One walk over one room. A room that received events meanwhile is walked again."""

    def __init__(
        self,
        room: RoomToFetch,
        *,
        database: Database,
        fetcher: StateFetcher,
        writer: RoomWriter,
        report: Report,
        metrics: Metrics,
        resolver: Resolver,
    ) -> None:
        self._room = room
        self._database = database
        self._fetcher = fetcher
        self._writer = writer
        self._report = report
        self._metrics = metrics
        self._result = WalkResult(RoomStates(resolver=resolver), {}, VerdictCache(database))
        self._partial_ids: set[str] = set()
        self._total = 0
        self._walked = 0

    async def run(self) -> WalkResult:
        """Walks every event that is partial now.

        Raises:
            ResyncError: a state could not be had. Whatever did not need it is committed.
        """
        events = await self._database.read(partial_state.load_partial_graph, self._room.room_id)
        self._total = len(events)
        self._partial_ids = {event.event_id for event in events}
        parents = external_prev_events(events)
        groups = await self._database.read(
            state_groups.load_event_state_groups, parents, room_id=self._room.room_id
        )
        await self._adopt_stored(groups)
        order = WalkOrder(events, parents - groups.keys())
        logger.info("walking", partial_events=len(events), gaps=len(parents - groups.keys()))
        children = _count_children(events)
        async with _GapFetches(self._fetch_gap, order.gaps_in_order()) as gaps:
            while len(order):
                if order.has_ready:
                    batch = order.take(BATCH_SIZE)
                    await self._walk_batch([event.event_id for event in batch])
                    self._forget_parents(batch, children)
                elif gaps.pending:
                    filled = await gaps.next()
                    if filled is not None:
                        await self._adopt_fetched(*filled)
                        order.fill(filled[0])
                elif gaps.failures:
                    for gap in await self._give_up_gaps(gaps.failures, events):
                        order.fill(gap)
                    gaps.failures.clear()
                else:
                    for event_id in order.break_cycle():
                        await self._fetch_or_give_up(event_id, events)
        return self._result

    async def _adopt_stored(self, groups: Mapping[str, int]) -> None:
        """Takes the states after parents that have full state in the database."""
        adopted: dict[int, RoomState] = {}
        for event_id, group in groups.items():
            if group not in adopted:
                full = await self._database.read(state_groups.load_state, group)
                adopted[group] = await asyncio.to_thread(
                    self._result.states.adopt, full, event_id, group_id=group
                )
            self._result.states_after[event_id] = adopted[group]

    async def _fetch_gap(self, event_id: str) -> FetchedState:
        return await self._fetcher.state_after(self._room, event_id, self._report)

    async def _fetch_or_give_up(self, event_id: str, events: Sequence[PartialEvent]) -> None:
        try:
            fetched = await self._fetch_gap(event_id)
        except ResyncError as error:
            await self._give_up_gaps({event_id: error}, events)
        else:
            await self._adopt_fetched(event_id, fetched)

    async def _adopt_fetched(self, event_id: str, fetched: FetchedState) -> None:
        if fetched.given_up:
            logger.warning("events given up", event_id=event_id, given_up=len(fetched.given_up))
        self._result.given_up |= fetched.given_up
        self._result.states_after[event_id] = await asyncio.to_thread(
            self._adopt, fetched, event_id
        )

    def _adopt(self, fetched: FetchedState, event_id: str) -> RoomState:
        """Takes a fetched state, by what is known by now of the partial events that it names.

        They were accepted or rejected on partial state when the state was fetched; those that
        have been walked since have their final verdict.
        """
        cache, state = self._result.cache, fetched.state
        named = [*fetched.rejected, *self._partial_ids.intersection(state.values())]
        for named_id, verdict in cache.known(named).items():
            if verdict.rejection is not None and state.get(verdict.event.key) == named_id:
                del state[verdict.event.key]
            elif verdict.rejection is None:
                state.setdefault(verdict.event.key, named_id)
        return self._result.states.adopt(state, event_id)

    async def _give_up_gaps(
        self, failures: Mapping[str, ResyncError], events: Sequence[PartialEvent]
    ) -> list[str]:
        """The gaps, once it is time to go on without the states at them.

        A stranger may name parents that do not exist, and the room must not stay partial because
        of that. Its event is then judged by the parents that are known; without any it is
        rejected. The parents of what makes our users members are never given up.

        Raises:
            ResyncError: somebody may still have them, the first of `failures`.
        """
        patience = self._room.patience
        answers = [
            error.failures if isinstance(error, NoServerAnswered) else ()
            for error in failures.values()
        ]
        unknown = all(any(failure.is_unknown for failure in one) for one in answers)
        if unknown:
            patience.with_parents.spend()
        likely = await self._load_likely_servers(failures, events)
        is_left = patience.is_left_for_parents(
            during_outage=any(
                f.is_outage and f.server_name in likely for one in answers for f in one
            )
        )
        ours = await self._database.read(
            current_state.find_local_joins, self._room.room_id, self._partial_ids
        )
        needed = {i for event in events if event.event_id in ours for i in event.prev_event_ids}
        if not unknown or is_left or not needed.isdisjoint(failures):
            raise next(iter(failures.values()))
        self._result.given_up |= {gap: str(error) for gap, error in failures.items()}
        logger.warning("unknown parents given up", given_up=list(failures)[:10])
        return list(failures)

    async def _load_likely_servers(
        self, gaps: Mapping[str, object], events: Sequence[PartialEvent]
    ) -> set[str]:
        """The servers most likely to have `gaps`: of who named them, and the one we joined via."""
        named_by = [
            event.event_id for event in events if not gaps.keys().isdisjoint(event.prev_event_ids)
        ]
        senders = await self._database.read(event_store.load_senders, named_by)
        via = self._room.servers.joined_via
        return {*map(domain_of, senders), *([via] if via else [])}

    async def _walk_batch(self, event_ids: Sequence[str]) -> None:
        with self._metrics.stage("resolve"):
            rechecked: list[Rechecked] = await asyncio.to_thread(
                recheck_batch,
                self._room.room_version,
                event_ids,
                self._result.states,
                self._result.states_after,
                self._result.cache,
            )
        with self._metrics.stage("store"):
            await self._writer.write_batch(
                rechecked, self._result.states.take_new_groups(), self._result.given_up
            )
        self._metrics.events_un_partial_stated(len(rechecked))
        self._walked += len(rechecked)
        self._report(Phase.WALK, self._walked, self._total)

    def _forget_parents(self, batch: Sequence[PartialEvent], children: dict[str, int]) -> None:
        """Lets go of states that no event needs any more, so that memory stays bounded."""
        for event in batch:
            for prev_id in event.prev_event_ids:
                children[prev_id] -= 1
                if children[prev_id] == 0:
                    self._result.states_after.pop(prev_id, None)


def _count_children(events: Sequence[PartialEvent]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in events:
        for prev_id in event.prev_event_ids:
            counts[prev_id] = counts.get(prev_id, 0) + 1
    return counts


class _GapFetches:
    """Fetches states ahead of the walk, the first alone and then a few at a time.

    The first answer of a room is by far the largest; those after it need only what differs.
    """

    def __init__(
        self, fetch: Callable[[str], Awaitable[FetchedState]], gaps: Sequence[str]
    ) -> None:
        self._fetch = fetch
        self._gaps = list(gaps)
        self._done: asyncio.Queue[tuple[str, FetchedState | BaseException]] = asyncio.Queue(
            GAPS_AHEAD
        )
        self._driver: asyncio.Task[None] | None = None
        self.pending = len(self._gaps)
        """How many states have not been handed out."""
        self.failures: dict[str, ResyncError] = {}
        """The states that could not be fetched, and why."""

    async def __aenter__(self) -> _GapFetches:
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._driver is not None
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)

    async def _drive(self) -> None:
        limit = asyncio.Semaphore(GAPS_AHEAD)

        async def fetch(gap: str) -> None:
            async with limit:
                outcome: FetchedState | BaseException
                try:
                    outcome = await self._fetch(gap)
                except Exception as error:
                    outcome = error
                await self._done.put((gap, outcome))

        async with asyncio.TaskGroup() as group:
            for position, gap in enumerate(self._gaps):
                if position == 0:
                    await fetch(gap)
                else:
                    group.create_task(fetch(gap))

    async def next(self) -> tuple[str, FetchedState] | None:
        """The next state that was fetched; None if fetching one failed for now.

        A failure is kept in `failures` while others go on; anything but a ResyncError is raised.
        """
        gap, outcome = await self._done.get()
        self.pending -= 1
        if isinstance(outcome, ResyncError):
            self.failures[gap] = outcome
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return gap, outcome
