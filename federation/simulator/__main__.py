"""A simulation in a process of its own: `python -m federation.simulator --members 50000`.

When it is ready it prints one line of JSON: `servers`, `ports`, `unreachable`, `ca_path`,
`verify_keys`, `rooms` (each with its `room_id`) and `control_url` (see
`federation.simulator.control`). It ends on SIGTERM, SIGINT or, with `--until-stdin-closes`, when
standard input ends, so that it does not outlive the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from federation.room_versions import ROOM_VERSIONS
from federation.simulator.control import Control
from federation.simulator.federation import LOOPBACK, SimulatedFederation
from federation.simulator.population import ALL_JOINED, Mix, fork_and_merge, long_history
from federation.simulator.resident import bind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a simulation as the command line says. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"the simulator cannot listen: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m federation.simulator",
        description="Homeservers with large rooms on loopback, over HTTPS.",
    )
    add = parser.add_argument
    add("--members", type=int, default=100, help="member entries of each room (default 100)")
    add("--rooms", type=int, default=1, help="how many rooms (default 1)")
    add("--room-version", choices=list(ROOM_VERSIONS), default="10", help="default 10")
    add("--servers", type=int, default=1, help="servers that listen (default 1)")
    add("--unreachable", type=int, default=0, help="servers with members that do not listen")
    add("--seed", type=int, default=0, help="the same seed and ports give the same bytes")
    add("--host", choices=[LOOPBACK, "localhost"], default=LOOPBACK, help="host in server names")
    add("--ports", type=int, nargs="*", default=[], help="ports to use, else free ones")
    add("--control-port", type=int, default=0, help="port of the control endpoint, else a free one")
    add("--join-rule", default="public", help="the rooms' join rule (default public)")
    add("--all-joined", action="store_true", help="everybody joins once and stays")
    add("--renames", type=int, default=0, help="further display names of every joined member")
    add("--forks", type=int, default=0, help="forks of two branches that are merged again")
    add("--slow-joins", action="store_true", help="joins are known to one resident only")
    add("--until-stdin-closes", action="store_true", help="end with standard input")
    return parser


async def _run(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    simulated = SimulatedFederation(
        servers=options.servers,
        unreachable=options.unreachable,
        seed=options.seed,
        host=options.host,
        ports=options.ports,
        propagates_joins=not options.slow_joins,
    )
    async with simulated:
        for _ in range(options.rooms):
            _build_room(simulated, options)
        control = Control(simulated)
        listening = bind(LOOPBACK, options.control_port)
        await control.start(listening)
        try:
            control_url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
            ready = {**control.describe(), "control_url": control_url}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            if options.until_stdin_closes:
                _stop_when_stdin_closes(stopping)
            await stopping.wait()
        finally:
            await control.stop()


def _build_room(simulated: SimulatedFederation, options: argparse.Namespace) -> None:
    """A room as the options ask for it.

    The join rule is set last, so that the members can come in.
    """
    mix = ALL_JOINED if options.all_joined else Mix()
    room = simulated.create_room(options.room_version, members=options.members, mix=mix)
    joined = [
        event.state_key
        for event in (room.events[event_id] for event_id in room.current_state().values())
        if event.membership == "join" and event.state_key is not None
    ]
    long_history(room, joined, options.renames)
    for number in range(options.forks):
        pair = [joined[position % len(joined)] for position in (2 * number, 2 * number + 1)]
        if pair[0] != pair[1]:
            fork_and_merge(room, [[pair[0]], [pair[1]]])
    if options.join_rule != "public":
        room.set_join_rules(options.join_rule)


def _stop_when_stdin_closes(stopping: asyncio.Event) -> None:
    """Set `stopping` when standard input ends, whatever kind of file it is."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        # Not `sys.stdin`: its lock, held while it waits, would spoil the exit of the process.
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):  # The loop may have ended first.
            loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
