"""Watches a worker from outside: `python -m tests.benchmarks.sampler PORT PID`.

Asks `/health` on PORT and adds up the memory of PID and its descendants, over and over until
standard input ends; then prints what it saw as one line of JSON. A process of its own, so that
what is measured is not held up by who measures.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import sys
import time

import psutil

INTERVAL_S = 0.05
TIMEOUT_S = 30.0


class Sampler:
    """What was seen so far."""

    def __init__(self, port: int, pid: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._root = psutil.Process(pid)
        self.slowest_health_s = 0.0
        self.health_answers = 0
        self.health_failures = 0
        self.peak_memory_bytes = 0

    def sample(self) -> None:
        """One question and one look at the memory."""
        started = time.perf_counter()
        try:
            self._connection.request("GET", "/health")
            response = self._connection.getresponse()
            response.read()
            healthy = response.status == 200
        except (OSError, http.client.HTTPException):
            self._connection.close()
            healthy = False
        self.slowest_health_s = max(self.slowest_health_s, time.perf_counter() - started)
        self.health_answers += healthy
        self.health_failures += not healthy
        self.peak_memory_bytes = max(self.peak_memory_bytes, self._memory())

    def _memory(self) -> int:
        """Resident memory of the process tree; pages that processes share count for each."""
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._root, *self._root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total


def main(port: int, pid: int) -> None:
    """Sample until standard input ends."""
    sampler = Sampler(port, pid)
    sampler.sample()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        sampler.sample()
    seen = {name: value for name, value in vars(sampler).items() if not name.startswith("_")}
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
