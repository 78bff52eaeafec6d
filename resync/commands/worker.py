"""`resync worker`: the service."""

from __future__ import annotations

from resync.config import Config
from resync.worker import Worker


async def run_worker(config: Config, *, once: bool) -> int:
    """Run until cancelled; with `once`, until nothing is due."""
    async with Worker.open(config) as worker:
        await worker.run(once=once)
    return 0
