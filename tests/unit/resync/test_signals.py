import asyncio
import os
import signal

import pytest

from resync.signals import Stopped, run_until_stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_cancels_the_work_which_may_tidy_up(number):
    tidied = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with pytest.raises(Stopped):
        await run_until_stopped(work())
    assert tidied == [True]


async def test_work_that_ends_by_itself():
    async def work() -> int:
        return 5

    before = signal.getsignal(signal.SIGTERM)
    assert await run_until_stopped(work()) == 5
    assert signal.getsignal(signal.SIGTERM) == before


async def test_work_that_fails():
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_until_stopped(work())


async def test_being_cancelled_is_not_being_stopped():
    async def work() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(run_until_stopped(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
