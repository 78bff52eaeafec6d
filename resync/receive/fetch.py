"""What a batch of received events needs and we do not have: parents, auth events, states.

Source: server-server API, "Backfilling and retrieving missing events".
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import structlog

from federation.client import FederationClient, RawPdu
from federation.errors import FederationError
from federation.events import Event
from resync.errors import NoServerAnswered
from resync.outliers import auth_dependencies
from resync.receive.order import missing_parents
from resync.room_to_fetch import RoomToFetch
from resync.servers import ServerRotation
from resync.state_fetch import FetchedState, StateFetcher
from storage import events as event_store
from storage import extremities
from storage.database import Database

logger = structlog.get_logger(__name__)

MISSING_EVENTS_LIMIT = 20
"""How many events are asked for at once, which is the most that deployed servers give."""
MISSING_EVENTS_ROUNDS = 3
MISSING_EVENTS_SECONDS = 20.0
AUTH_ROUNDS = 10
"""How often auth events of auth events are asked for."""
MAX_AUTH_EVENTS = 1000
"""Auth events that are asked for one batch."""
AUTH_SECONDS = 60.0
SERVERS_PER_EVENT = 3
"""How many servers are asked for one event or state beside those that named it: a stranger decides
what we look for."""
STATES_SECONDS = 120.0
"""What has arrived by then is stored, and need not be asked for again."""
REQUESTS_AT_ONCE = 10
STATES_AT_ONCE = 4
MAX_STATES = 20
"""States that are asked for one batch; events that need more wait for the next try."""
REMEMBERED_GAPS = 10_000


class MissingPieces:
    """Asks other servers for what received events refer to."""

    def __init__(
        self, *, client: FederationClient, fetcher: StateFetcher, database: Database
    ) -> None:
        self._client = client
        self._fetcher = fetcher
        self._database = database
        self._asked: dict[str, None] = {}

    async def parents(
        self, room: RoomToFetch, events: Sequence[Event], origins: Mapping[str, str]
    ) -> list[Event]:
        """Missing parents of `events`, and theirs, as far as the senders give them.

        Each gap is asked for once: what stays missing is found out by asking for the state there.

        Args:
            origins: event id to the server that sent the event; those without one are left out.
        """
        found: list[Event] = []
        origin_of = dict(origins)
        for _ in range(MISSING_EVENTS_ROUNDS):
            batch = [*events, *found]
            gaps = await self._find_gaps(batch)
            wanted: dict[str, list[str]] = {}
            for gap, named_by in gaps.items():
                origin = next((origin_of[i] for i in named_by if i in origin_of), None)
                if origin is not None and gap not in self._asked:
                    self._remember(gap)
                    wanted.setdefault(origin, []).append(named_by[0])
            if not wanted:
                break
            known = {event.event_id for event in batch}
            answers = await asyncio.gather(
                *(self._ask(room, origin, latest, batch) for origin, latest in wanted.items())
            )
            new = 0
            for origin, answer in zip(wanted, answers, strict=True):
                for event in answer:
                    if event.event_id not in known:
                        known.add(event.event_id)
                        origin_of[event.event_id] = origin
                        found.append(event)
                        new += 1
            if not new:
                break
        return found

    async def auth_events(
        self, room: RoomToFetch, events: Sequence[Event], origins: Mapping[str, str]
    ) -> set[str]:
        """Fetches and stores auth events that `events` name and we do not have.

        Returns:
            Ids of those that could not be had.
        """
        own = {event.event_id for event in events}
        named_by: defaultdict[str, list[str]] = defaultdict(list)
        for event in events:
            for auth_id in auth_dependencies(event):
                if auth_id not in own:
                    named_by[auth_id].append(event.event_id)
        missing = named_by.keys() - await self._find_known(named_by)
        if not missing:
            return set()
        senders = dict.fromkeys(origins[i] for a in missing for i in named_by[a] if i in origins)
        others = await room.servers.order()
        servers = dict.fromkeys((*islice(senders, SERVERS_PER_EVENT), *others[:SERVERS_PER_EVENT]))
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                await self._admit_auth_events(room, missing, list(servers))
        except TimeoutError:
            logger.warning("auth events did not arrive in time", room_id=room.room_id)
        return missing - await self._find_known(missing)

    async def states(
        self, room: RoomToFetch, gaps: Sequence[str], origins: Mapping[str, str]
    ) -> tuple[dict[str, FetchedState], dict[str, str]]:
        """The states after events that we do not have, and why the others could not be had.

        Args:
            origins: see `parents`; who named a gap is asked first.
        """
        limit = asyncio.Semaphore(STATES_AT_ONCE)
        fetched: dict[str, FetchedState] = {}
        failed = dict.fromkeys(gaps[MAX_STATES:], "too many of the parents are unknown")
        senders = list(dict.fromkeys(origins.values()))
        servers = list(dict.fromkeys((*senders, *await room.servers.order())))
        # We are not among them: nobody sends us what is ours, and `order` leaves us out.
        rotation = ServerRotation(
            self._database,
            own_server_name="",
            joined_via=next(iter(senders), None),
            servers=servers[:SERVERS_PER_EVENT],
        )
        few = dataclasses.replace(room, servers=rotation)

        async def fetch(gap: str) -> None:
            async with limit:
                try:
                    fetched[gap] = await self._fetcher.state_after(few, gap, lambda *_: None)
                except NoServerAnswered as error:
                    failed[gap] = str(error)

        try:
            async with asyncio.timeout(STATES_SECONDS):
                await asyncio.gather(*(fetch(gap) for gap in gaps[:MAX_STATES]))
        except TimeoutError:
            for gap in gaps:
                if gap not in fetched:
                    failed.setdefault(gap, "the state there did not arrive in time")
        return fetched, failed

    async def _find_gaps(self, events: Sequence[Event]) -> dict[str, list[str]]:
        missing = missing_parents(events, ())
        known = await self._database.read(event_store.find_in_graph, list(missing))
        return {gap: named_by for gap, named_by in missing.items() if gap not in known}

    async def _ask(
        self, room: RoomToFetch, origin: str, latest: Sequence[str], batch: Sequence[Event]
    ) -> list[Event]:
        earliest = await self._database.read(extremities.load_forward_extremities, room.room_id)
        try:
            async with asyncio.timeout(MISSING_EVENTS_SECONDS):
                pdus = await self._client.get_missing_events(
                    origin,
                    room.room_id,
                    earliest,
                    list(latest)[:MISSING_EVENTS_LIMIT],
                    MISSING_EVENTS_LIMIT,
                    0,
                )
                checked = await self._fetcher.verify(room, pdus)
        except (FederationError, TimeoutError) as error:
            logger.info("missing events not given", server=origin, error=str(error) or "time-out")
            return []
        own = {event.event_id for event in batch}
        known = await self._database.read(
            event_store.find_in_graph, [event.event_id for event in checked.events]
        )
        return [e for e in checked.events if e.event_id not in own and e.event_id not in known]

    async def _admit_auth_events(
        self, room: RoomToFetch, missing: Collection[str], servers: list[str]
    ) -> None:
        share = AUTH_SECONDS / (len(servers) + 1)
        admission = self._fetcher.new_admission()
        wanted = set(missing)
        asked: set[str] = set()
        for _ in range(AUTH_ROUNDS):
            wanted = set(sorted(wanted - asked)[: MAX_AUTH_EVENTS - len(asked)])
            if not wanted:
                return
            asked |= wanted
            for server in list(servers):
                if not wanted:
                    break
                given = await self._ask_for_events(room, server, wanted, seconds=share)
                if not given:
                    # It is of no use, and must not take the others' time again.
                    servers.remove(server)
                await admission.admit(given)
                wanted.difference_update(event.event_id for event in given)
            wanted = admission.missing()

    async def _ask_for_events(
        self, room: RoomToFetch, server: str, wanted: Collection[str], *, seconds: float
    ) -> list[Event]:
        """Those of `wanted` that a server gives in time and that pass checks 1 to 3."""
        limit = asyncio.Semaphore(REQUESTS_AT_ONCE)
        answers: list[RawPdu] = []

        async def fetch(event_id: str) -> None:
            async with limit:
                try:
                    answers.append(await self._client.event(server, event_id))
                except FederationError as error:
                    logger.info(
                        "event not given", server=server, event_id=event_id, error=str(error)
                    )

        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(fetch(event_id) for event_id in sorted(wanted)))
        except TimeoutError:
            logger.info("auth events not given in time", server=server)
        checked = await self._fetcher.verify(room, answers)
        return [event for event in checked.events if event.event_id in wanted]

    async def _find_known(self, event_ids: Iterable[str]) -> set[str]:
        return await self._database.read(event_store.find_known, list(event_ids))

    def _remember(self, gap: str) -> None:
        self._asked[gap] = None
        if len(self._asked) > REMEMBERED_GAPS:
            del self._asked[next(iter(self._asked))]
