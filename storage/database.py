"""Transactions: run in threads, whole or not at all, repeated when they lose a race."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from storage.engine import READ_ONLY_OPTION, UNFLUSHED_OPTION, make_engine, parse_url
from storage.errors import DatabaseUnavailable, SchemaOutOfDate
from storage.failures import Failure, classify

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

ATTEMPTS = 6
"""How often a transaction is tried before `DatabaseUnavailable`."""

FIRST_PAUSE_S = 0.05
"""Pause after the first failure; doubled after each further one."""

_WRITE: Mapping[str, bool] = {}
_READ = {READ_ONLY_OPTION: True, "postgresql_readonly": True}
_UNFLUSHED = {UNFLUSHED_OPTION: True}


class Database:
    """One database, and the threads in which its transactions run.

    SQLite lets one transaction write at a time, so writes queue in one thread of their own and
    reads run beside them.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        """Prepare to connect; the first transaction does.

        Args:
            url: `sqlite:///path` or `postgresql://user:password@host/name`.
            pool_size: how many transactions may run at once.

        Raises:
            InvalidDatabaseUrl: see `storage.engine.parse_url`.
        """
        parsed = parse_url(url)
        self.is_postgresql = parsed.get_backend_name() == "postgresql"
        self.name = parsed.set(drivername=parsed.get_backend_name(), query={}).render_as_string()
        self._engine = make_engine(parsed, pool_size=pool_size)
        self._closed = threading.Event()
        if self.is_postgresql:
            self._readers = ThreadPoolExecutor(pool_size, thread_name_prefix="database")
            self._writers = self._readers
        else:
            self._readers = ThreadPoolExecutor(
                max(1, pool_size - 1), thread_name_prefix="database-read"
            )
            self._writers = ThreadPoolExecutor(1, thread_name_prefix="database-write")

    async def run(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `function(connection, ...)` in one transaction in a thread, commit, and return.

        Everything is rolled back when it raises. It may run more than once: a transaction that
        loses a race or its connection is rolled back and repeated, so `function` must have no
        effect outside the database. When the caller is cancelled, a transaction that is already
        running is waited for first.

        Raises:
            DatabaseUnavailable: the database does not answer, or stays locked.
            SchemaOutOfDate: a table or column is missing.
            sqlalchemy.exc.IntegrityError: a constraint or trigger refused a row.
        """
        return await self._in_thread(
            self._writers, functools.partial(self._transaction, _WRITE, function, *args, **kwargs)
        )

    async def run_unflushed(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Like `run`, without waiting for the disk: for much that can be had again.

        The end of this process undoes nothing. A power failure may undo it, together with all
        that was written later; a `run` that has returned has made sure of everything before it.
        """
        return await self._in_thread(
            self._writers,
            functools.partial(self._transaction, _UNFLUSHED, function, *args, **kwargs),
        )

    async def read(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Like `run`, for a function that only reads: on SQLite it does not wait for writers."""
        return await self._in_thread(
            self._readers, functools.partial(self._transaction, _READ, function, *args, **kwargs)
        )

    def run_sync(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`run` in the calling thread. For commands and tests, never in an event loop."""
        return self._transaction(_WRITE, function, *args, **kwargs)

    def read_sync(
        self, function: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`read` in the calling thread. For threads that compute, never in an event loop."""
        return self._transaction(_READ, function, *args, **kwargs)

    async def close(self) -> None:
        """Refuse new transactions, wait for the running ones, and close the connections."""
        self._closed.set()
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """`close` in the calling thread."""
        self._closed.set()
        self._readers.shutdown(wait=True)
        self._writers.shutdown(wait=True)
        self._engine.dispose()

    async def _in_thread(self, executor: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        if self._closed.is_set():
            self._refuse()
        running = executor.submit(work)
        result = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            # Whoever waits for what the transaction has written must not go on before it ended.
            if not running.cancel():
                await asyncio.wait([result])
                if not result.cancelled():
                    result.exception()
            raise

    def _refuse(self) -> NoReturn:
        raise DatabaseUnavailable(f"{self.name} has been closed: the service is shutting down")

    def _transaction(
        self,
        options: Mapping[str, bool],
        function: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(options, function, *args, **kwargs)
            except (DBAPIError, PoolTimeoutError) as error:
                reason = str(getattr(error, "orig", None) or error).strip()
                failure = classify(error)
                if failure is Failure.OTHER:
                    raise
                if failure is Failure.SCHEMA:
                    raise SchemaOutOfDate(
                        f"{self.name} does not have the tables of this version ({reason}):"
                        " run `resync migrate`"
                    ) from error
                if failure is Failure.UNAVAILABLE or attempt == ATTEMPTS:
                    self._unavailable(reason, error)
                pause = FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1)
                logger.info(
                    "transaction on %s failed, repeating it in %.2f s (attempt %d of %d): %s",
                    self.name,
                    pause,
                    attempt,
                    ATTEMPTS,
                    reason,
                )
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _attempt(
        self,
        options: Mapping[str, bool],
        function: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        with self._engine.connect() as connection:
            connection.execution_options(**options)
            with connection.begin() as transaction:
                result = function(connection, *args, **kwargs)
                try:
                    transaction.commit()
                except DBAPIError as error:
                    if error.connection_invalidated:
                        # It may have been committed, so it must not be repeated blindly.
                        self._unavailable("the connection was lost during a commit", error)
                    # After a refused commit SQLite is still in the transaction.
                    connection.invalidate(error)
                    raise
                return result

    def _unavailable(self, reason: str, error: Exception) -> NoReturn:
        if self.is_postgresql:
            hint = (
                "check that the PostgreSQL server is running and reachable, and that the user,"
                " password and database name in the config are right"
            )
        else:
            hint = (
                "check that its directory exists and can be written, that the disk is not full,"
                " and that no other program keeps the file locked"
            )
        raise DatabaseUnavailable(f"cannot use the database {self.name}: {reason}; {hint}") from (
            error
        )
