"""Joins and resyncs of simulated rooms: how long, where the time goes, and what it costs.

Run it as a script: `python -m tests.benchmarks resync [--members N ...] [--runs N]
[--database sqlite | postgresql://...] [--json FILE]`.

For each run a simulated federation with one room, a worker on an empty database and a sampler are
started, each a process of its own. `wall` is from the request to join until the room is fully
stated. The stages overlap: what they took adds up to more than `wall`. CPU seconds are those of the
worker's own process, of its checking processes, of the simulator and of PostgreSQL. `fetch` is
waiting for the answer of `/state`; `verify` and `store` include waiting for their turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.processes import WorkerDatabase, cpu_seconds, sampler, simulator, worker

MEMBERS = (1_000, 10_000, 50_000)
STAGES = ("fetch", "parse", "verify", "auth", "resolve", "store")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Measured:
    """One run. Times in seconds, memory in MiB."""

    events: int
    join: float
    wall: float
    stages: Mapping[str, float]
    cpu_worker: float
    cpu_checking: float
    cpu_simulator: float
    cpu_postgresql: float
    peak_memory: float
    longest_stall: float
    slowest_health: float
    health_answers: int
    health_failures: int
    requests: Mapping[str, int]

    @property
    def events_per_second(self) -> float:
        """State events and auth events checked and stored, per second of `wall`."""
        return self.events / self.wall


def measure(members: int, options: argparse.Namespace) -> Measured:
    """One run with a room of `members` joined members."""
    with (
        simulator(
            f"--members={members}",
            f"--servers={options.servers}",
            f"--unreachable={options.silent_servers}",
            f"--room-version={options.room_version}",
            "--all-joined",
        ) as federation,
        worker(options.database, federation.server_names[:1]) as resyncing,
        sampler(resyncing.admin_port, resyncing.pid) as seen,
    ):
        database = WorkerDatabase(resyncing)

        def cpu_so_far() -> tuple[float, ...]:
            own, checking = cpu_seconds(resyncing.pid)
            return own, checking, cpu_seconds(federation.pid)[0], database.cpu_seconds()

        before = cpu_so_far()
        started = time.perf_counter()
        resyncing.join(federation.room_id, federation.server_names[0])
        joined = time.perf_counter()
        resyncing.wait_until_complete(federation.room_id, TIMEOUT_S)
        ended = time.perf_counter()
        used = [now - then for then, now in zip(before, cpu_so_far(), strict=True)]
        metrics = resyncing.metrics()
        requests = federation.requests()
        events = database.count_events(federation.room_id)
    stages = metrics.get("resync_stage_seconds_total", {})
    return Measured(
        events=events,
        join=joined - started,
        wall=ended - started,
        stages={stage: stages.get(stage, 0.0) for stage in STAGES},
        cpu_worker=used[0],
        cpu_checking=used[1],
        cpu_simulator=used[2],
        cpu_postgresql=used[3],
        peak_memory=seen["peak_memory_bytes"] / 2**20,
        longest_stall=metrics["resync_event_loop_stall_max_seconds"][""],
        slowest_health=seen["slowest_health_s"],
        health_answers=int(seen["health_answers"]),
        health_failures=int(seen["health_failures"]),
        requests=requests,
    )


def median_run(runs: Sequence[Measured]) -> dict[str, float]:
    """The median of every figure over several runs, by its name in the table."""

    def median(*values: float) -> float:
        return statistics.median(values)

    figures = {
        "events": median(*(run.events for run in runs)),
        "join, s": median(*(run.join for run in runs)),
        "wall, s": median(*(run.wall for run in runs)),
        "wall, fastest, s": min(run.wall for run in runs),
        "events per second": median(*(run.events_per_second for run in runs)),
    }
    for stage in STAGES:
        figures[f"{stage}, s"] = median(*(run.stages[stage] for run in runs))
    return figures | {
        "CPU worker, s": median(*(run.cpu_worker for run in runs)),
        "CPU checking processes, s": median(*(run.cpu_checking for run in runs)),
        "CPU PostgreSQL, s": median(*(run.cpu_postgresql for run in runs)),
        "CPU simulator, s": median(*(run.cpu_simulator for run in runs)),
        "peak memory, MiB": median(*(run.peak_memory for run in runs)),
        "longest event-loop stall, ms": median(*(run.longest_stall * 1000 for run in runs)),
        "slowest /health, ms": median(*(run.slowest_health * 1000 for run in runs)),
        "/health answers": median(*(run.health_answers for run in runs)),
        "/health failures": max(run.health_failures for run in runs),
        "requests": median(*(sum(run.requests.values()) for run in runs)),
    }


def render(results: Mapping[int, Sequence[Measured]]) -> str:
    """A table with a row for each figure and a column for each size of room."""
    columns = {members: median_run(runs) for members, runs in results.items()}
    names = list(next(iter(columns.values())))
    width = max(len(name) for name in names)
    lines = [" " * width + "".join(f"{members:>12,}" for members in columns)]
    for name in names:
        cells = "".join(f"{_shown(figures[name]):>12}" for figures in columns.values())
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says and print the table."""
    options = _parser().parse_args(arguments)
    database = "SQLite" if options.database == "sqlite" else "PostgreSQL"
    print(
        f"join and resync, room version {options.room_version}, {database}, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"median of {options.runs} runs; members:",
        flush=True,
    )
    results: dict[int, list[Measured]] = {}
    for members in options.members:
        for number in range(1, options.runs + 1):
            run = measure(members, options)
            results.setdefault(members, []).append(run)
            print(
                f"  {members:,} members, run {number}: {run.wall:.2f} s",
                file=sys.stderr,
                flush=True,
            )
    print(render(results))
    if options.json is not None:
        described = {
            "database": database,
            "room_version": options.room_version,
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "rooms": [
                {
                    "members": members,
                    "median": median_run(runs),
                    "runs": [asdict(run) for run in runs],
                }
                for members, runs in results.items()
            ],
        }
        options.json.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks resync", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--members", type=int, nargs="+", default=list(MEMBERS), help="sizes of rooms")
    add("--runs", type=int, default=3, help="runs for each size (default 3)")
    add("--database", default="sqlite", help="sqlite, or the URL of a PostgreSQL server")
    add("--room-version", default="10", help="default 10")
    add("--servers", type=int, default=2, help="servers of the room that answer (default 2)")
    add("--silent-servers", type=int, default=0, help="servers of the room that do not answer")
    add("--json", type=Path, help="file to write every run to")
    return parser


if __name__ == "__main__":
    main()
