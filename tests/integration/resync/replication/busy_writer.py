"""A process that writes rows and announces them until it is killed.

`busy_writer.py DATABASE_URL INSTANCE_NAME PORT TASKS`. Each task writes one transaction after the
other, of which every fifth is rolled back; with no task, what is there is announced.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from storage.database import Database
from storage.streams import write_cache_invalidations
from tests.integration.resync.replication.netcat import Worker, running


async def write(worker: Worker, count: int) -> None:
    for number in itertools.count(count):
        try:
            async with worker.generators["caches"].reserve(count) as ids:
                rows = [(f"f{stream_id}", None) for stream_id in ids]
                await worker.database.run(
                    write_cache_invalidations,
                    ids,
                    worker.instance_name,
                    # One row too few is refused: the ids stay without rows.
                    rows if number % 5 else rows[1:],
                    1,
                )
        except ValueError:
            continue
        await worker.server.notify()


async def main(url: str, instance_name: str, port: int, tasks: int) -> None:
    async with running(Database(url), instance_name, port=port) as worker:
        print("ready", flush=True)
        await asyncio.gather(
            asyncio.Event().wait(), *(write(worker, count) for count in range(1, tasks + 1))
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
