import asyncio
import time

from resync.loop_monitor import LoopMonitor


async def test_a_blocked_loop_is_measured():
    seen: list[float] = []
    monitor = LoopMonitor(seen.append, interval=0.01)
    task = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.03)
    time.sleep(0.2)  # noqa: ASYNC251 (the stall to be measured)
    await asyncio.sleep(0.03)
    task.cancel()
    # The stall may have begun while the monitor's sleep of 0.01 s was under way.
    assert monitor.longest >= 0.18
    assert max(seen) == monitor.longest
    monitor.reset()
    assert monitor.longest == 0
