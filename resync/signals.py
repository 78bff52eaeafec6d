"""Stopping on SIGTERM and SIGINT: the work is cancelled and may tidy up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

R = TypeVar("R")


class Stopped(Exception):
    """The process was told to stop, and the work has ended."""


async def run_until_stopped(work: Coroutine[None, None, R]) -> R:
    """The result of `work`; `Stopped` if a signal came first. A second signal ends it at once."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    stopping = False

    def stop(number: int) -> None:
        nonlocal stopping
        stopping = True
        # From here on a signal does what it does to any program: nobody is kept waiting.
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        task.cancel()

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop, one)
    try:
        return await task
    except asyncio.CancelledError:
        if stopping:
            raise Stopped from None
        raise
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
