"""Verification and state resolution on Spark and in process: where the crossover is.

Run it as `python -m tests.benchmarks spark [--events N] [--members N] [--states N]`. It starts a
session on one core of this machine and one on two, after another, and shows what starting and the
way of the data there and back cost by themselves. Of two runs the faster counts. Results of both
engines are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from federation.checks import VerifyKey, check_pdus
from federation.room_versions import get_room_version
from federation.signing import SigningKey, sign_event
from resync.spark.metrics import SparkMetrics
from resync.spark.resolve import SparkResolver
from resync.spark.session import WarmSession
from resync.spark.verify import SparkPduChecker, rows_per_task
from resync.state import resolve_deltas
from resync.state.batch import Problem
from resync.state.conflicts import deltas_from_first
from resync.verify import CHUNK, CheckPool
from tests.benchmarks.bench_state_resolution import Fork, make_room, member

SERVER = "example.org"
ROOM = "!room:example.org"
VERSION = "10"
KEY = SigningKey("1", bytes(range(32)))
KEYS = {(SERVER, KEY.key_id): VerifyKey(KEY.verify_key, 2**53)}
DISTINCT = 20_000
RUNS = 2
T = TypeVar("T")


def signed_events(count: int) -> list[str]:
    """Membership events as JSON; beyond `DISTINCT` of them, the same ones again."""
    version = get_room_version(VERSION)
    texts = []
    for number in range(min(count, DISTINCT)):
        user_id = f"@user{number}:{SERVER}"
        pdu = {
            "type": "m.room.member",
            "state_key": user_id,
            "sender": user_id,
            "room_id": ROOM,
            "content": {"membership": "join", "displayname": f"User {number}"},
            "depth": number,
            "origin_server_ts": 1_700_000_000_000 + number,
            "auth_events": ["$" + "a" * 43, "$" + "b" * 43, "$" + "c" * 43],
            "prev_events": ["$" + "d" * 43],
        }
        texts.append(json.dumps(sign_event(pdu, version, SERVER, KEY)))
    return (texts * -(-count // len(texts)))[:count]


def large_room(members: int, states: int) -> Problem:
    """Forks of one room, each of which changes its own share of the members."""
    room, trunk = make_room(VERSION, members)
    forks = []
    for side in range(states):
        fork = Fork(dict(trunk.state), trunk.timestamp + side)
        for number in range(side, members, states):
            user = member(number)
            content = {"membership": "join", "displayname": f"side {side}"}
            room.add(fork, user, "m.room.member", content, user)
        forks.append(fork.state)
    for event in room.events.values():
        _ = event.json  # kept as received where events come from another server
    return Problem(VERSION, forks[0], deltas_from_first(forks), room.events)


def fastest(function: Callable[[], T]) -> tuple[float, T]:
    """The shortest of `RUNS` times, and the result."""
    return min((timed(function) for _ in range(RUNS)), key=lambda run: run[0])


def timed(function: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def line(label: str, seconds: float, events: int) -> None:
    print(f"  {label:44} {seconds:7.2f} s  {seconds / events * 1e6:7.1f} µs each", flush=True)


async def pooled(texts: Sequence[str], processes: int) -> float:
    """Seconds that the worker's own processes take, once they are warm."""
    pool = CheckPool(processes)

    async def check(some: Sequence[str]) -> None:
        await asyncio.gather(
            *(
                pool.check(some[i : i + CHUNK], VERSION, ROOM, KEYS)
                for i in range(0, len(some), CHUNK)
            )
        )

    try:
        await check(texts[: 4 * CHUNK])
        started = time.perf_counter()
        await check(texts)
        return time.perf_counter() - started
    finally:
        await pool.close()


def transfer(session: WarmSession, texts: Sequence[str]) -> float:
    """Seconds for the events to go to the Python processes and back, untouched."""
    import pyarrow as pa

    from resync.spark.packed import map_packed
    from resync.spark.tasks import echo, to_bytes

    rows = rows_per_task(len(texts), session.cores)

    def job(spark: Any) -> int:
        partitions = (
            [pa.record_batch({"json": pa.array(map(to_bytes, texts[i : i + rows]), pa.binary())})]
            for i in range(0, len(texts), rows)
        )
        return sum(batch.num_rows for batch in map_packed(spark, partitions, echo))

    return timed(lambda: session.run("verify", "transfer", job))[0]


def bench_master(
    cores: int, texts: Sequence[str], problem: Problem, wanted: Any
) -> tuple[float, float]:
    """Times on `local[cores]`: verification and resolution."""
    session = WarmSession(
        f"local[{cores}]", {}, environment=os.environ, metrics=SparkMetrics(CollectorRegistry())
    )
    session.start()
    seconds, ready = timed(session.wait_until_started)
    if not ready:
        raise SystemExit(session.unavailable)
    print(f"Spark on local[{cores}]")
    print(f"  {'starting the session':44} {seconds:7.2f} s", flush=True)
    try:
        checker = SparkPduChecker(session)
        checker.check(texts[:20_000], VERSION, ROOM, KEYS, group="warm")
        seconds = min(transfer(session, texts) for _ in range(RUNS))
        line("events there and back, untouched", seconds, len(texts))
        verifying, checks = fastest(
            lambda: checker.check(texts, VERSION, ROOM, KEYS, group="verification")
        )
        line("verification", verifying, len(texts))
        if checks != wanted[0]:
            raise SystemExit("Spark and in process disagree on verification")
        resolver = SparkResolver(session)
        resolving, (changes,) = fastest(
            lambda: resolver.resolve_batch([problem], group="resolution")
        )
        line("resolution", resolving, conflicts(problem))
        if changes != wanted[1]:
            raise SystemExit("Spark and in process disagree on resolution")
        return verifying, resolving
    finally:
        session.close()


def conflicts(problem: Problem) -> int:
    """How many events are in conflict, about: each changed member has two."""
    return 2 * len({key for delta in problem.deltas for key in delta})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--members", type=int, default=200_000)
    parser.add_argument("--states", type=int, default=8)
    options = parser.parse_args(arguments)
    texts = signed_events(options.events)
    problem = large_room(options.members, options.states)
    print(
        f"{len(texts):,} events to verify; {options.members:,} members x {options.states} states, "
        f"{conflicts(problem):,} conflicted events; room version {VERSION}"
    )
    print("In process")
    seconds, checks = fastest(lambda: check_pdus(texts, VERSION, ROOM, KEYS))
    line("verification, one thread", seconds, len(texts))
    seconds = min(asyncio.run(pooled(texts, 2)) for _ in range(RUNS))
    line("verification, two processes", seconds, len(texts))
    seconds, changes = fastest(lambda: resolve_deltas(*problem[:4], rejected=problem.rejected))
    line("resolution", seconds, conflicts(problem))
    one = bench_master(1, texts, problem, (checks, changes))
    two = bench_master(2, texts, problem, (checks, changes))
    print(
        f"Speed-up from one core to two: verification {one[0] / two[0]:.2f}, "
        f"resolution {one[1] / two[1]:.2f}"
    )


if __name__ == "__main__":
    main()
