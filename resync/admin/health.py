"""Whether the worker is alive: its loop turns, and its database answers.

The database is asked in the background, so that `/health` answers at once even while the
database is busy; what it reports is never older than the bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class HealthReport:
    """`problems` has one line for each thing that does not answer; empty when all is well."""

    problems: list[str]

    @property
    def healthy(self) -> bool:
        """Whether everything answered within the bound."""
        return not self.problems


class Health:
    """Remembers when the worker's loop and the database last gave a sign of life.

    `ping_database` must raise if the database cannot be asked; `bound_seconds` is how old a
    sign of life may be.
    """

    def __init__(
        self,
        ping_database: Callable[[], Awaitable[None]],
        *,
        bound_seconds: float = 10.0,
        interval_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ping_database = ping_database
        self._bound = bound_seconds
        self._interval = interval_seconds
        self._clock = clock
        self._loop_turned: float | None = None
        self._database_answered: float | None = None
        self._database_error = "it has not answered yet"

    def beat(self) -> None:
        """The worker's loop has turned: called by the worker, at least once a second."""
        self._loop_turned = self._clock()

    async def run(self) -> None:
        """Ask the database again and again, until cancelled."""
        while True:
            await self.probe()
            await asyncio.sleep(self._interval)

    async def probe(self) -> None:
        """Ask the database once, and remember how it went."""
        try:
            async with asyncio.timeout(self._bound):
                await self._ping_database()
        except TimeoutError:
            self._database_error = f"no answer within {self._bound:g} s"
        except Exception as error:
            # Whatever the driver raises, it means the same here; the text stays in one line.
            self._database_error = (str(error).splitlines() or [type(error).__name__])[0]
        else:
            self._database_answered = self._clock()
            self._database_error = ""

    def report(self) -> HealthReport:
        """What is known now; asks nobody."""
        problems = []
        if self._is_old(self._loop_turned):
            problems.append(f"the worker's loop has not turned for {self._bound:g} s")
        if self._database_error or self._is_old(self._database_answered):
            problems.append(f"the database does not answer: {self._database_error or 'no answer'}")
        return HealthReport(problems)

    def _is_old(self, moment: float | None) -> bool:
        return moment is None or self._clock() - moment > self._bound
