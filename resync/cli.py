"""The command line. Exit codes: 0 done, 1 failed, 2 bad usage or configuration.

Every command is a module in `resync.commands`, imported only when it is called, so that
`resync status` does not pay for what `resync worker` needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import metadata
from pathlib import Path

from federation.errors import FederationError, InvalidIdentifier
from federation.identifiers import check_room_id, check_server_name, check_user_id
from resync.config import Config, ConfigError, load_config
from resync.errors import ResyncError
from resync.join_request import InvalidJoinRequest, check_join_request
from resync.logs import configure_logging
from resync.signals import Stopped, run_until_stopped
from storage.errors import InvalidDatabaseUrl, StorageError

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
DEFAULT_CONFIG = Path("resync.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    For bad usage argparse raises SystemExit(2) itself.
    """
    options = build_parser().parse_args(arguments)
    try:
        result: int = options.run(options)
    except ConfigError as error:
        return _fail(str(error), BAD_USAGE)
    except (InvalidIdentifier, InvalidJoinRequest, InvalidDatabaseUrl) as error:
        return _fail(str(error), BAD_USAGE)
    except (ResyncError, FederationError, StorageError) as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        return _fail(str(error), FAILED)
    except (KeyboardInterrupt, Stopped):
        return _fail("stopped; what was done so far is kept", INTERRUPTED)
    return result


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"resync: {line}", file=sys.stderr)  # noqa: T201
    return code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line as argparse knows it."""
    parser = argparse.ArgumentParser(
        prog="resync",
        description="Takes partially joined Matrix rooms out of partial state.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"resync {metadata.version('faster-joins-resync')}"
    )
    _add_config(parser, default=None)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.set_defaults(run=run)
        # After the command too; what is not given there must not undo what was given before it.
        _add_config(command, default=argparse.SUPPRESS)
        return command

    add("migrate", "Bring the database to the newest schema.", _migrate)
    worker = add("worker", "Run the service: resync rooms until stopped.", _worker)
    worker.add_argument("--once", action="store_true", help="work until nothing is due, then end")
    join = add("join", "Join a room with partial state.", _join)
    join.add_argument("room_id", metavar="ROOM", type=_room_id, help="the id of the room")
    join.add_argument(
        "--via",
        metavar="SERVER",
        type=_server_name,
        action="append",
        required=True,
        help="a server that is in the room; may be given more than once",
    )
    join.add_argument(
        "--user",
        metavar="MXID",
        type=_user_id,
        required=True,
        help="the user of this server who joins",
    )
    join.add_argument("--wait", action="store_true", help="wait until the room is fully stated")
    leave = add("leave", "Let a user leave a room, partially joined or not.", _leave)
    leave.add_argument("room_id", metavar="ROOM", type=_room_id, help="the id of the room")
    leave.add_argument("user_id", metavar="USER", type=_user_id, help="a user of this server")
    purge = add(
        "purge",
        "Delete everything that is known of a room. Nobody is told: let its users leave before, "
        "and the servers hear of it.",
        _purge,
    )
    purge.add_argument("room_id", metavar="ROOM", type=_room_id, help="the id of the room")
    status = add("status", "Show rooms, progress, last error and next attempt.", _status)
    status.add_argument("room_id", metavar="ROOM", nargs="?", type=_room_id, help="one room only")
    status.add_argument("--json", action="store_true", help="print JSON")
    trigger = add("trigger", "Forget the backoff of a room and resync it now.", _trigger)
    trigger.add_argument("room_id", metavar="ROOM", type=_room_id, help="the id of the room")
    replication = add("replication", "Follow the replication streams.", _tail)
    actions = replication.add_subparsers(metavar="ACTION", required=True)
    summary = "Print rows of the streams as they come."
    tail = actions.add_parser("tail", help=summary, description=summary, allow_abbrev=False)
    _add_config(tail, default=argparse.SUPPRESS)
    tail.add_argument(
        "--stream",
        metavar="NAME",
        action="append",
        default=[],
        help="a stream to print, such as caches; may be given more than once (default: all)",
    )
    tail.add_argument(
        "--tcp",
        metavar="HOST:PORT",
        type=_tcp_address,
        help="a worker's TCP listener to follow (default: Redis if the config has it, else the "
        "TCP listener of the config)",
    )

    add("demo", "Show the whole story on a simulated federation; needs no set-up.", _demo)
    sample = add("generate-config", "Print a commented sample configuration.", _generate_config)
    sample.add_argument(
        "--server-name",
        metavar="NAME",
        type=_server_name,
        default="example.com",
        help="the name of this homeserver (default: example.com)",
    )
    return parser


_Parser = argparse.ArgumentParser


def _add_config(parser: _Parser, *, default: str | None) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=default,
        help="the configuration (default: resync.yaml if there is one; "
        "RESYNC_… variables win over it)",
    )


def _checked(check: Callable[[str], None]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        try:
            check(text)
        except InvalidIdentifier as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return convert


def _tcp_address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


_room_id = _checked(check_room_id)
_user_id = _checked(check_user_id)
_server_name = _checked(check_server_name)


def _load_config(options: argparse.Namespace) -> Config:
    path: Path | None = options.config
    if path is None and DEFAULT_CONFIG.exists():
        path = DEFAULT_CONFIG
    return load_config(path, os.environ)


def _run(work: Coroutine[None, None, int]) -> int:
    return asyncio.run(run_until_stopped(work))


def _migrate(options: argparse.Namespace) -> int:
    config = _load_config(options)
    from resync.commands.migrate import migrate

    return migrate(config, sys.stdout)


def _worker(options: argparse.Namespace) -> int:
    config = _load_config(options)
    configure_logging(config.log.format, config.log.level)
    from resync.commands.worker import run_worker

    try:
        return _run(run_worker(config, once=options.once))
    except Stopped:
        return DONE  # being told to stop is how a service ends


def _join(options: argparse.Namespace) -> int:
    config = _load_config(options)
    wish = check_join_request(
        options.room_id, options.via, options.user, server_name=config.server_name
    )
    configure_logging(config.log.format, "warning")
    from resync.commands.join import join

    return _run(join(config, wish, wait=options.wait, out=sys.stdout, progress_to=sys.stderr))


def _leave(options: argparse.Namespace) -> int:
    config = _load_config(options)
    configure_logging(config.log.format, "warning")
    from resync.commands.leave import leave

    return _run(leave(config, options.room_id, options.user_id, out=sys.stdout))


def _purge(options: argparse.Namespace) -> int:
    config = _load_config(options)
    configure_logging(config.log.format, "warning")
    from resync.commands.leave import purge

    return _run(purge(config, options.room_id, out=sys.stdout))


def _status(options: argparse.Namespace) -> int:
    config = _load_config(options)
    configure_logging(config.log.format, "warning")
    from resync.commands.status import show_status

    return _run(show_status(config, options.room_id, as_json=options.json, out=sys.stdout))


def _trigger(options: argparse.Namespace) -> int:
    config = _load_config(options)
    configure_logging(config.log.format, "warning")
    from resync.commands.trigger import trigger

    return _run(trigger(config, options.room_id, out=sys.stdout))


def _tail(options: argparse.Namespace) -> int:
    from resync.commands.replication import tail

    config = _load_config(options)
    configure_logging(config.log.format, "warning")
    try:
        return _run(tail(config, streams=options.stream, tcp=options.tcp, out=sys.stdout))
    except Stopped:
        return DONE  # there is no other way to end it


def _demo(options: argparse.Namespace) -> int:
    from resync.demo import run_demo

    configure_logging("console", "warning")
    return _run(run_demo(sys.stdout))


def _generate_config(options: argparse.Namespace) -> int:
    from resync.sample_config import sample_config

    sys.stdout.write(sample_config(options.server_name))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
