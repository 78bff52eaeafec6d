"""Many readers in a process of their own: `many_readers.py PORT READERS LAST_ID`.

Each reads to the row with the last id and checks that the ids came without a gap. Prints one
line when all have got their positions, and one with the number of rows when all are done.
"""

from __future__ import annotations

import asyncio
import sys


async def read(port: int, last: int, ready: asyncio.Semaphore) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b"REPLICATE\n")
    rows = 0
    expected = 0
    rest = b""
    while True:
        data = await reader.read(1 << 18)
        if not data:
            raise SystemExit(f"cut off after {rows} rows")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"RDATA caches resync1 "):
                token = int(line[21 : line.index(b" ", 21)])
                if token != expected:
                    raise SystemExit(f"expected {expected}, got {token}")
                expected += 1
                rows += 1
            elif line.startswith(b"POSITION caches resync1 "):
                expected = int(line.rsplit(b" ", 1)[1]) + 1
                ready.release()
        if expected > last:
            writer.close()
            return rows


async def main(port: int, readers: int, last: int) -> None:
    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(read(port, last, ready)) for _ in range(readers)]
    for _ in tasks:
        await ready.acquire()
    print("ready", flush=True)
    print(sum(await asyncio.gather(*tasks)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:])))
