"""The state of a room at an event we do not have, asked of other servers.

`/state_ids` says what the state is; only what is unknown is then fetched, with `/state` when much
is missing and `/event` when little is, checked (1 to 4) and stored as outliers while it arrives.
Source: server-server API, "Retrieving a room's state at an event"; design, section 3, step 3.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy import Connection

from federation.client import FederationClient, RawPdu
from federation.errors import FederationError, InvalidResponse, TransportError, is_outage
from federation.events import StateKey
from resync.admin.metrics import Metrics
from resync.errors import (
    IncompleteState,
    InvalidStateAnswer,
    KeysMissingForNow,
    NoServerAnswered,
    ServerFailure,
)
from resync.outliers import OutlierAdmission
from resync.progress import Phase
from resync.room_to_fetch import RoomToFetch
from resync.verify import CheckedPdus, PduVerifier
from storage import events as event_store
from storage.database import Database

logger = structlog.get_logger(__name__)

MAX_SINGLE_EVENTS = 1000
"""More missing events than this are never asked for one by one."""
FEW_EVENTS = 20
"""Up to this many missing events are always asked for one by one."""
CONCURRENT_EVENT_REQUESTS = 10
SERVERS_PER_EVENT = 5
"""How many servers are asked for an event before it is given up."""
BATCHES_IN_FLIGHT = 8
"""How many batches of an answer are being checked while the next ones are parsed."""
STORE_BATCH = 5000
"""Events stored in one transaction. Event ids are random, so that a transaction rewrites much of
the indexes whatever its size: small ones write several times as much."""
MAX_AUTH_ROUNDS = 50
"""How often auth events of auth events are asked for before what is missing is given up."""

Report = Callable[[str, int, int], None]
"""Told `(phase, done, total)` as work proceeds."""


@dataclass(slots=True)
class FetchedState:
    """A room's state at an event.

    Attributes:
        state: accepted state events only.
        rejected: events that were named and are rejected here, with the entry they would set.
        given_up: ids of events that were named and that no server delivered, with the reason.
    """

    state: dict[StateKey, str]
    rejected: dict[str, StateKey] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)


def wants_whole_state(missing: int, total: int) -> bool:
    """Whether `/state` is cheaper than `missing` requests to `/event`, of `total` events."""
    if missing <= FEW_EVENTS:
        return False
    return missing > MAX_SINGLE_EVENTS or missing * 10 >= total


class StateFetcher:
    """Fetches the state after events that we do not have."""

    def __init__(
        self,
        *,
        client: FederationClient,
        verifier: PduVerifier,
        database: Database,
        instance_name: str,
        metrics: Metrics,
    ) -> None:
        self.client = client
        self.database = database
        self.metrics = metrics
        self._verifier = verifier
        self._instance_name = instance_name

    async def state_after(self, room: RoomToFetch, event_id: str, report: Report) -> FetchedState:
        """The state of `room` after `event_id`, from the first server that can give it.

        The event itself is fetched too and, when it is an accepted state event, is part of the
        answer.

        Raises:
            NoServerAnswered: no server could; the room is tried again later.
            KeysMissingForNow: they could, but some of it cannot be checked yet.
        """
        fetches: list[_StateFetch] = []

        def ask(server: str) -> Awaitable[FetchedState]:
            fetches.append(_StateFetch(self, room, server, event_id, report))
            return fetches[-1].run()

        try:
            return await room.servers.ask(f"the state at {event_id}", ask)
        except NoServerAnswered:
            if any(fetch.lacks_much for fetch in fetches):
                room.patience.with_events.spend()
            raise

    def new_admission(self) -> OutlierAdmission:
        """An empty admission, for one fetch."""
        return OutlierAdmission(
            self.database, instance_name=self._instance_name, metrics=self.metrics
        )

    async def verify(self, room: RoomToFetch, pdus: Sequence[RawPdu]) -> CheckedPdus:
        """Checks 1 to 3 on PDUs that are said to be of `room`."""
        with self.metrics.stage("verify"):
            return await self._verifier.verify(
                pdus, room_version=room.room_version, room_id=room.room_id
            )

    def job_size(self, room: RoomToFetch, expected: int) -> int:
        """How many PDUs to gather for `verify_gathered`; 0: verify them as they come."""
        return self._verifier.job_size(expected, room.room_id)

    async def verify_gathered(
        self,
        room: RoomToFetch,
        batches: Sequence[Sequence[RawPdu]],
        report: Callable[[int, int], None],
    ) -> list[CheckedPdus]:
        """`verify` for many batches in one job, of which `report` is told the progress."""
        with self.metrics.stage("verify"):
            return await self._verifier.verify_gathered(
                batches, room_version=room.room_version, room_id=room.room_id, report=report
            )


class _StateFetch:
    """The state after one event, from one server.

    Attributes:
        lacks_much: whether it failed for so many events that they were not asked for one by one.
    """

    def __init__(
        self, fetcher: StateFetcher, room: RoomToFetch, server: str, event_id: str, report: Report
    ) -> None:
        self._fetcher = fetcher
        self._room = room
        self._server = server
        self._event_id = event_id
        self._report = report
        self._admission = fetcher.new_admission()
        self._missing: set[str] = set()
        self._refused: dict[str, dict[str, None]] = {}
        self._uncheckable: set[str] = set()
        self._may_pass_later: dict[str, str] = {}
        self._to_fetch = 0
        self._fetched = 0
        self.lacks_much = False

    async def run(self) -> FetchedState:
        answer = await self._fetcher.client.state_ids(
            self._server, self._room.room_id, self._event_id
        )
        total, self._missing = await self._fetcher.database.read(
            self._find_missing, (*answer.state, *answer.auth_chain, self._event_id)
        )
        self._to_fetch = len(self._missing)
        logger.info(
            "state named",
            server=self._server,
            event_id=self._event_id,
            state_events=len(answer.state),
            missing=self._to_fetch,
        )
        self._report(Phase.FETCH, 0, self._to_fetch)
        if wants_whole_state(len(self._missing - {self._event_id}), total):
            await self._fetch_whole_state()
        await self._fetch_single_events()
        await self._fetch_missing_auth_events()
        self._insist_on_keys()
        return await self._fetcher.database.read(self._state_from, answer.state)

    def _find_missing(
        self, connection: Connection, event_ids: Sequence[str]
    ) -> tuple[int, set[str]]:
        """How many different ids `event_ids` has, and those of events that are not stored."""
        named = set(event_ids)
        unknown = named - self._room.stored
        found = event_store.find_known(connection, unknown)
        self._room.stored.update(found)
        return len(named), unknown - found

    async def _fetch_whole_state(self) -> None:
        """Takes what is missing from `/state`: parsing, checking, deciding and storing overlap."""
        checks: asyncio.Queue[asyncio.Task[list[CheckedPdus]] | None] = asyncio.Queue(
            BATCHES_IN_FLIGHT
        )
        full: asyncio.Queue[bool] = asyncio.Queue(1)
        job_size = self._fetcher.job_size(self._room, self._to_fetch)

        async def parse(group: asyncio.TaskGroup) -> None:
            started = time.monotonic()
            gathered: list[list[RawPdu]] = []

            def parsed(seconds: float) -> None:
                # While it waits for the next batch, which is not the time that `fetch` means.
                nonlocal started
                started += seconds
                self._fetcher.metrics.stage_seconds("parse", seconds)

            answer = self._fetcher.client.state(
                self._server, self._room.room_id, self._event_id, observe_parsing=parsed
            )
            async with contextlib.aclosing(answer) as batches:
                async for batch in batches:
                    self._fetcher.metrics.stage_seconds("fetch", time.monotonic() - started)
                    gathered.append(batch.pdus)
                    if sum(map(len, gathered)) >= job_size:
                        await checks.put(group.create_task(self._verify(gathered, job_size)))
                        gathered = []
                    started = time.monotonic()
            if gathered:
                await checks.put(group.create_task(self._verify(gathered, job_size)))
            await checks.put(None)

        async def decide() -> None:
            while (check := await checks.get()) is not None:
                for checked in await check:
                    await self._decide(checked, self._server)
                    if self._admission.unstored >= STORE_BATCH:
                        await full.put(True)
            await full.put(False)

        async def store() -> None:
            while await full.get():
                await self._admission.store()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(parse(group))
                group.create_task(decide())
                group.create_task(store())
        except ExceptionGroup as failed:
            if isinstance(failed.exceptions[0], FederationError):
                # What has arrived is stored; the next server is asked for the rest only.
                await self._admission.store()
            raise failed.exceptions[0] from None
        await self._admission.store()

    async def _verify(self, batches: Sequence[list[RawPdu]], job_size: int) -> list[CheckedPdus]:
        """The checks of batches: each by itself, or all in one job."""
        if job_size == 0:
            return [await self._fetcher.verify(self._room, batch) for batch in batches]
        return await self._fetcher.verify_gathered(
            self._room, batches, lambda done, total: self._report(Phase.CHECK, done, total)
        )

    async def _decide(self, checked: CheckedPdus, server: str) -> None:
        """Takes what was asked for out of a checked batch that `server` sent."""
        for dropped in checked.dropped:
            if dropped.event_id is not None:
                self._refuse(dropped.event_id, server, dropped.reason)
                if dropped.is_uncheckable and server == self._server:
                    # What this server named has these signatures elsewhere too.
                    self._uncheckable.add(dropped.event_id)
                if dropped.may_pass_later:
                    self._may_pass_later[dropped.event_id] = dropped.reason
        checked.log_dropped(server)
        wanted = [event for event in checked.events if event.event_id in self._missing]
        for event in wanted:
            self._missing.discard(event.event_id)
            self._may_pass_later.pop(event.event_id, None)
        self._missing -= self._uncheckable
        self._fetched += await self._admission.decide(wanted)
        self._report(Phase.FETCH, self._fetched, self._to_fetch)

    def _refuse(self, event_id: str, server: str, reason: str) -> None:
        failure = str(ServerFailure(server, reason))
        self._refused.setdefault(event_id, {})[failure] = None

    async def _fetch_single_events(self) -> None:
        """Asks for what is still missing one by one, here first and then elsewhere.

        What a server sends that does not pass the checks is asked of the next one too.

        Raises:
            IncompleteState: too much is missing, or no server answered about some of it, so that
                nothing can be given up yet.
        """
        if len(self._missing) > MAX_SINGLE_EVENTS and not self._room.patience.with_events.is_left:
            # Others had their chance to deliver them better.
            self._missing.difference_update(self._refused)
        if len(self._missing) > MAX_SINGLE_EVENTS:
            self.lacks_much = True
            raise IncompleteState(
                f"{len(self._missing)} of the {self._to_fetch} events that {self._server} named "
                f"for the state at {self._event_id} were not delivered or did not pass the checks"
            )
        if not self._missing:
            return
        others = await self._room.servers.order()
        answered: set[str] = set()
        for server in list(dict.fromkeys((self._server, *others)))[:SERVERS_PER_EVENT]:
            answered |= await self._ask_for_events(server)
            if not self._missing:
                return
        for event_id in sorted(self._missing - answered):
            raise IncompleteState(
                f"no server could give the event {event_id}: {self._why_missing(event_id)}"
            )

    async def _ask_for_events(self, server: str) -> set[str]:
        """Asks `server` for all that is missing; returns the ids about which it gave an answer."""
        answered: set[str] = set()
        limit = asyncio.Semaphore(CONCURRENT_EVENT_REQUESTS)
        reachable = True

        async def fetch(event_id: str) -> tuple[str, RawPdu] | None:
            nonlocal reachable
            async with limit:
                if not reachable:
                    return None
                try:
                    raw = await self._fetcher.client.event(server, event_id)
                except FederationError as error:
                    self._refuse(event_id, server, str(error))
                    lost = isinstance(error, TransportError)
                    reachable = reachable and (not lost or isinstance(error, InvalidResponse))
                    if not is_outage(error):
                        answered.add(event_id)
                    return None
            answered.add(event_id)
            return event_id, raw

        answers = await asyncio.gather(*(fetch(event_id) for event_id in sorted(self._missing)))
        fetched = [answer for answer in answers if answer is not None]
        if fetched:
            checked = await self._fetcher.verify(self._room, [raw for _, raw in fetched])
            dropped = iter(checked.dropped)
            for (event_id, _), found in zip(fetched, checked.event_ids, strict=True):
                if found is None:
                    self._refuse(event_id, server, next(dropped).reason)
                elif found != event_id:
                    self._refuse(event_id, server, f"sent {found} instead")
            await self._decide(checked, server)
            await self._admission.store()
        return answered

    async def _fetch_missing_auth_events(self) -> None:
        """Fetches auth events that the answer left out, and theirs, until none is wanted."""
        asked: set[str] = set()
        for _ in range(MAX_AUTH_ROUNDS):
            wanted = self._admission.missing() - asked - self._uncheckable
            if not wanted:
                return
            asked |= wanted
            self._missing = wanted
            await self._fetch_single_events()

    def _insist_on_keys(self) -> None:
        """
        Raises:
            KeysMissingForNow: the room has patience left for events that may pass later.
        """
        if self._may_pass_later and self._room.patience.with_events.is_left:
            self._room.patience.with_events.spend()
            raise KeysMissingForNow(
                f"the state at {self._event_id}",
                len(self._may_pass_later),
                next(iter(self._may_pass_later.values())),
            )

    def _state_from(self, connection: Connection, state_ids: Sequence[str]) -> FetchedState:
        """The state that `state_ids` and the event itself make up."""
        entries = self._room.entries
        for event_id, verdict in self._admission.verdicts.items():
            if verdict.event.room_id != self._room.room_id:
                continue  # Named as an auth event, and stored for a room of its own.
            key = verdict.event.key if verdict.event.is_state else None
            entries[event_id] = event_store.StateEntry(key, verdict.rejection is not None)
        self._room.stored.update(self._admission.verdicts)
        unknown = {*state_ids, self._event_id} - entries.keys()
        entries.update(event_store.load_state_entries(connection, self._room.room_id, unknown))
        return self._assemble(state_ids, entries)

    def _assemble(
        self, state_ids: Sequence[str], entries: Mapping[str, event_store.StateEntry]
    ) -> FetchedState:
        fetched = FetchedState({})
        for event_id in state_ids:
            entry = entries.get(event_id)
            if entry is None:
                fetched.given_up[event_id] = self._why_missing(event_id)
            elif entry.key is None:
                raise InvalidStateAnswer(
                    f"{self._server} named {event_id} as state, which is not a state event"
                )
            elif entry.rejected:
                fetched.rejected[event_id] = entry.key
            elif fetched.state.setdefault(entry.key, event_id) != event_id:
                raise InvalidStateAnswer(
                    f"{self._server} named two events for the state entry {entry.key}: "
                    f"{fetched.state[entry.key]} and {event_id}"
                )
        if ("m.room.create", "") not in fetched.state:
            raise InvalidStateAnswer(
                f"the state at {self._event_id} from {self._server} has no create event"
            )
        own = entries.get(self._event_id)
        if own is None:
            fetched.given_up[self._event_id] = self._why_missing(self._event_id)
        elif own.key is not None and own.rejected:
            fetched.rejected[self._event_id] = own.key
        elif own.key is not None:
            fetched.state[own.key] = self._event_id
        return fetched

    def _why_missing(self, event_id: str) -> str:
        if event_id in self._admission.waiting:
            return "its auth events could not be had"
        refusals = self._refused.get(event_id)
        return (
            "; ".join(refusals)
            if refusals
            else f"{self._server} named it and did not deliver it as an event of this room"
        )
