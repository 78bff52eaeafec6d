"""Runs benchmarks: `python -m tests.benchmarks [NAME [OPTION ...]]`.

Without a name: all of them, as they are by default. With one, its options follow.
They measure and never fail because something is slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from tests.benchmarks import bench_resync, bench_spark, bench_state_resolution

BENCHMARKS: Mapping[str, Callable[[Sequence[str]], object]] = {
    "resync": bench_resync.main,
    "state_resolution": bench_state_resolution.main,
    "spark": bench_spark.main,
}


def main(arguments: Sequence[str]) -> int:
    """Run what the command line names. Returns the exit status."""
    if not arguments:
        for name, run in BENCHMARKS.items():
            print(f"== {name}", flush=True)
            run([])
        return 0
    name, *options = arguments
    if name not in BENCHMARKS:
        print(f"usage: python -m tests.benchmarks [{'|'.join(BENCHMARKS)}] [option ...]")
        return 0 if name in ("-h", "--help") else 2
    BENCHMARKS[name](options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
