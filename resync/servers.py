"""Which server is asked next.

The server we joined through comes first, then the servers of the room, those that are not in
backoff before those that are. What a server did is kept in the `destinations` table, so every
worker learns from it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

import structlog

from federation.errors import FederationError, HttpError, is_outage
from resync.errors import NoServerAnswered, ServerFailure
from storage import destinations
from storage.database import Database

logger = structlog.get_logger(__name__)

T = TypeVar("T")

MAX_SERVERS_PER_ATTEMPT = 20
"""How many servers are asked for one thing before the room waits."""


class ServerRotation:
    """Asks the servers of one room, one after the other, until one answers."""

    def __init__(
        self,
        database: Database,
        *,
        own_server_name: str,
        joined_via: str | None,
        servers: Iterable[str],
        clock: Callable[[], float] = time.time,
        shuffle: Callable[[list[str]], None] = random.shuffle,
    ) -> None:
        """`servers`: those known to be in the room; `clock`: seconds since the epoch.

        `shuffle` puts them in an order of its own: where there are more than are asked in one
        attempt, every one of them has its chance in some attempt.
        """
        others = list(dict.fromkeys(servers))
        shuffle(others)
        self.joined_via = joined_via
        """The server that is known to have the room; None if there is none."""
        first = [joined_via] if joined_via else []
        self._servers = [
            server for server in dict.fromkeys((*first, *others)) if server != own_server_name
        ]
        self._database = database
        self._clock = clock

    async def order(self) -> list[str]:
        """The servers to ask, best first, at most `MAX_SERVERS_PER_ATTEMPT`.

        A server in backoff is asked only when no other is left, the one whose backoff ends first
        leading: a room must not wait for a schedule while its servers may be back. The server we
        joined through is always among them: it is the one that is known to have the room.
        """
        now = int(self._clock() * 1000)
        retry_at = await self._database.read(destinations.load_retry_times, self._servers)
        due = [server for server in self._servers if retry_at.get(server, 0) <= now]
        waiting = [server for server in self._servers if retry_at.get(server, 0) > now]
        waiting.sort(key=lambda server: retry_at[server])
        order = due + waiting
        if self.joined_via in order[MAX_SERVERS_PER_ATTEMPT:]:
            return [*order[: MAX_SERVERS_PER_ATTEMPT - 1], self.joined_via]
        return order[:MAX_SERVERS_PER_ATTEMPT]

    async def ask(self, what: str, question: Callable[[str], Awaitable[T]]) -> T:
        """The first answer that `question(server)` gets.

        Args:
            what: what is asked for, for people: "the state before $event".
            question: raises FederationError when a server cannot answer.

        Raises:
            NoServerAnswered: with what each server did.
        """
        failures: list[ServerFailure] = []
        for server in await self.order():
            try:
                answer = await question(server)
            except FederationError as error:
                logger.info("server could not answer", server=server, what=what, error=str(error))
                down = is_outage(error)
                failures.append(ServerFailure(server, str(error), _is_unknown(error), down))
                if down:
                    await self._record_failure(server)
                continue
            await self._database.run(destinations.record_success, server)
            return answer
        raise NoServerAnswered(what, failures)

    async def _record_failure(self, server: str) -> None:
        await self._database.run(
            destinations.record_failure, server, now_ms=int(self._clock() * 1000)
        )


def _is_unknown(error: FederationError) -> bool:
    return isinstance(error, HttpError) and (error.status, error.errcode) == (404, "M_NOT_FOUND")


def without(servers: Sequence[str], excluded: Collection[str]) -> list[str]:
    """`servers` in their order, without those in `excluded`."""
    return [server for server in servers if server not in excluded]
