"""The commands of the replication protocol: one line each, parsed and written.

A line is the name of the command, a space, and arguments whose form depends on the command:
`RDATA <stream> <writer> <token> <json>`. The same lines travel over TCP, ended by a newline, and
over Redis, one to a message. Source: Synapse's documentation of TCP replication; the commands
which that page leaves out are those that Synapse 1.163 sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self


class CommandError(ValueError):
    """A line whose command is known but whose arguments are not what that command takes."""


class UnknownCommand(CommandError):
    """A line with a command that this version does not know: to be skipped."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown command {name[:64]!r}")
        self.name = name[:64]


class Command(Protocol):
    """One command. `str(command)` is its line, without the newline."""

    NAME: ClassVar[str]

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Read what follows the name of the command. Raises CommandError."""
        ...

    def arguments(self) -> str:
        """What follows the name of the command."""
        ...


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _refuse_constant(name: str) -> Any:
    raise CommandError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise CommandError(f"{text[:64]!r} is not an integer")
    return int(text)


def _decode(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise CommandError("the JSON is nested too deeply") from None
    except CommandError:
        raise
    except ValueError as error:
        raise CommandError(f"broken JSON: {error}") from None


def _split(arguments: str, form: str) -> list[str]:
    """Split at single spaces into as many words as `form` names; the last keeps its spaces."""
    expected = form.split(" ")
    words = arguments.split(" ", len(expected) - 1)
    if len(words) != len(expected) or not all(words):
        raise CommandError(f"expected {form!r}")
    return words


def _word(text: str) -> str:
    if not text or " " in text:
        raise CommandError(f"{text[:64]!r} is not one word")
    return text


@dataclass(frozen=True, slots=True)
class _Text:
    """A command whose arguments are one free text."""

    data: str = ""

    @classmethod
    def parse(cls, arguments: str) -> Self:
        return cls(arguments)

    def arguments(self) -> str:
        return self.data


@dataclass(frozen=True, slots=True)
class Server(_Text):
    """`SERVER <server_name>`: the first line of a TCP server: whom the client has reached."""

    NAME: ClassVar[str] = "SERVER"


@dataclass(frozen=True, slots=True)
class Rdata:
    """`RDATA <stream_name> <instance_name> <token> <row_json>`: one row of a stream.

    `token` is the row's stream id, or None (`batch` on the wire) when more rows of the same id
    follow: a reader holds these back until the row that bears the id.
    """

    NAME: ClassVar[str] = "RDATA"
    stream_name: str
    instance_name: str
    token: int | None
    row: Any

    @classmethod
    def parse(cls, arguments: str) -> Rdata:
        stream_name, instance_name, token, row = _split(
            arguments, "<stream_name> <instance_name> <token> <row_json>"
        )
        return cls(
            stream_name, instance_name, None if token == "batch" else _integer(token), _decode(row)
        )

    def arguments(self) -> str:
        token = "batch" if self.token is None else str(self.token)
        return f"{self.stream_name} {self.instance_name} {token} {_JSON.encode(self.row)}"


@dataclass(frozen=True, slots=True)
class Position:
    """`POSITION <stream_name> <instance_name> <prev_token> <new_token>`: where a writer stands.

    The writer has no rows between the two tokens. A reader whose own position is below
    `previous_token` has missed something and fetches it elsewhere.
    """

    NAME: ClassVar[str] = "POSITION"
    stream_name: str
    instance_name: str
    previous_token: int
    new_token: int

    @classmethod
    def parse(cls, arguments: str) -> Position:
        stream_name, instance_name, previous_token, new_token = _split(
            arguments, "<stream_name> <instance_name> <prev_token> <new_token>"
        )
        return cls(stream_name, instance_name, _integer(previous_token), _integer(new_token))

    def arguments(self) -> str:
        return f"{self.stream_name} {self.instance_name} {self.previous_token} {self.new_token}"


@dataclass(frozen=True, slots=True)
class Error(_Text):
    """`ERROR <text>`: what went wrong; the connection is usually closed after it."""

    NAME: ClassVar[str] = "ERROR"


@dataclass(frozen=True, slots=True)
class Ping(_Text):
    """`PING <text>`: keeps the connection alive; the text is usually a time in milliseconds."""

    NAME: ClassVar[str] = "PING"


@dataclass(frozen=True, slots=True)
class Name(_Text):
    """`NAME <text>`: what a client calls itself."""

    NAME: ClassVar[str] = "NAME"


@dataclass(frozen=True, slots=True)
class Replicate:
    """`REPLICATE`: asks for the position of every stream."""

    NAME: ClassVar[str] = "REPLICATE"

    @classmethod
    def parse(cls, arguments: str) -> Replicate:
        return cls()

    def arguments(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class UserSync:
    """`USER_SYNC <instance_id> <user_id> <device_id> start|end <last_sync_ms>`.

    A device id of `None` on the wire is no device. Servers before 1.112 leave it out.
    """

    NAME: ClassVar[str] = "USER_SYNC"
    instance_id: str
    user_id: str
    device_id: str | None
    is_syncing: bool
    last_sync_ms: int

    @classmethod
    def parse(cls, arguments: str) -> UserSync:
        instance_id, user_id, rest = _split(arguments, "<instance_id> <user_id> <rest>")
        *device, state, last_sync_ms = rest.rsplit(" ", 2)
        if state not in ("start", "end"):
            raise CommandError(f"the state must be 'start' or 'end', not {state[:64]!r}")
        device_id = device[0] if device and device[0] != "None" else None
        return cls(instance_id, user_id, device_id, state == "start", _integer(last_sync_ms))

    def arguments(self) -> str:
        state = "start" if self.is_syncing else "end"
        return f"{self.instance_id} {self.user_id} {self.device_id} {state} {self.last_sync_ms}"


@dataclass(frozen=True, slots=True)
class ClearUserSync:
    """`CLEAR_USER_SYNC <instance_id>`: forget who was syncing through that process."""

    NAME: ClassVar[str] = "CLEAR_USER_SYNC"
    instance_id: str

    @classmethod
    def parse(cls, arguments: str) -> ClearUserSync:
        return cls(_word(arguments))

    def arguments(self) -> str:
        return self.instance_id


@dataclass(frozen=True, slots=True)
class FederationAck:
    """`FEDERATION_ACK <instance_name> <token>`: the federation stream was handled up to there."""

    NAME: ClassVar[str] = "FEDERATION_ACK"
    instance_name: str
    token: int

    @classmethod
    def parse(cls, arguments: str) -> FederationAck:
        instance_name, token = _split(arguments, "<instance_name> <token>")
        return cls(instance_name, _integer(token))

    def arguments(self) -> str:
        return f"{self.instance_name} {self.token}"


@dataclass(frozen=True, slots=True)
class UserIp:
    """`USER_IP <user_id> [<access_token>, <ip>, <user_agent>, <device_id>, <last_seen>]`."""

    NAME: ClassVar[str] = "USER_IP"
    user_id: str
    access_token: str = field(repr=False)
    ip: str
    user_agent: str
    device_id: str | None
    last_seen: int

    @classmethod
    def parse(cls, arguments: str) -> UserIp:
        user_id, text = _split(arguments, "<user_id> <json>")
        match _decode(text):
            case [str(access_token), str(ip), str(user_agent), str() | None as device, int(seen)]:
                return cls(user_id, access_token, ip, user_agent, device, seen)
        raise CommandError("expected [access_token, ip, user_agent, device_id, last_seen]")

    def arguments(self) -> str:
        seen = [self.access_token, self.ip, self.user_agent, self.device_id, self.last_seen]
        return f"{self.user_id} {_JSON.encode(seen)}"


@dataclass(frozen=True, slots=True)
class RemoteServerUp:
    """`REMOTE_SERVER_UP <server_name>`: a server that was down may be back."""

    NAME: ClassVar[str] = "REMOTE_SERVER_UP"
    server_name: str

    @classmethod
    def parse(cls, arguments: str) -> RemoteServerUp:
        return cls(_word(arguments))

    def arguments(self) -> str:
        return self.server_name


@dataclass(frozen=True, slots=True)
class LockReleased:
    """`LOCK_RELEASED [<instance_name>, <lock_name>, <lock_key>]`."""

    NAME: ClassVar[str] = "LOCK_RELEASED"
    instance_name: str
    lock_name: str
    lock_key: str

    @classmethod
    def parse(cls, arguments: str) -> LockReleased:
        match _decode(arguments):
            case [str(instance_name), str(lock_name), str(lock_key)]:
                return cls(instance_name, lock_name, lock_key)
        raise CommandError("expected [instance_name, lock_name, lock_key]")

    def arguments(self) -> str:
        return _JSON.encode([self.instance_name, self.lock_name, self.lock_key])


@dataclass(frozen=True, slots=True)
class NewActiveTask(_Text):
    """`NEW_ACTIVE_TASK <task_id>`: a background task is ready to run."""

    NAME: ClassVar[str] = "NEW_ACTIVE_TASK"


@dataclass(frozen=True, slots=True)
class CancelTask(_Text):
    """`CANCEL_TASK <task_id>`: a background task is to be ended."""

    NAME: ClassVar[str] = "CANCEL_TASK"


_COMMANDS: tuple[type[Command], ...] = (
    Server,
    Rdata,
    Position,
    Error,
    Ping,
    Name,
    Replicate,
    UserSync,
    ClearUserSync,
    FederationAck,
    UserIp,
    RemoteServerUp,
    LockReleased,
    NewActiveTask,
    CancelTask,
)
_BY_NAME: dict[str, type[Command]] = {command.NAME: command for command in _COMMANDS}

FROM_SERVER: frozenset[str] = frozenset(
    command.NAME
    for command in (
        *(Server, Rdata, Position, Error, Ping, RemoteServerUp),
        *(LockReleased, NewActiveTask, CancelTask),
    )
)
"""The commands that a TCP client accepts."""

FROM_CLIENT: frozenset[str] = frozenset(
    command.NAME
    for command in (
        *(Name, Replicate, Ping, Error, UserSync, ClearUserSync, FederationAck, UserIp),
        *(RemoteServerUp, LockReleased, NewActiveTask, CancelTask),
    )
)
"""The commands that a TCP server accepts."""


def parse_line(line: str) -> Command:
    """Read one line, without its newline; it must not be blank.

    Raises UnknownCommand for a command that is not in the list, and CommandError when the
    arguments of a known one are wrong.
    """
    name, _, arguments = line.partition(" ")
    command = _BY_NAME.get(name)
    if command is None:
        raise UnknownCommand(name)
    try:
        return command.parse(arguments)
    except CommandError as error:
        raise CommandError(f"{name}: {error}") from None


def format_line(command: Command) -> str:
    """Write one line, without its newline. Raises CommandError if it would be more than one."""
    arguments = command.arguments()
    if "\n" in arguments or "\r" in arguments:
        raise CommandError(f"{command.NAME}: a line break would end the command early")
    return f"{command.NAME} {arguments}" if arguments else command.NAME


def encode_lines(commands: Sequence[Command]) -> bytes:
    """The lines of `commands`, each with its newline, as bytes."""
    return "".join([format_line(command) + "\n" for command in commands]).encode()
