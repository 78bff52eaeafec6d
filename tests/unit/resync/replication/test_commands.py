"""Commands: what Synapse's documentation shows, round trips, and lines that must be refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resync.replication.commands import (
    CancelTask,
    ClearUserSync,
    Command,
    CommandError,
    Error,
    FederationAck,
    LockReleased,
    Name,
    NewActiveTask,
    Ping,
    Position,
    Rdata,
    RemoteServerUp,
    Replicate,
    Server,
    UnknownCommand,
    UserIp,
    UserSync,
    encode_lines,
    format_line,
    parse_line,
)

LINES: list[tuple[str, Command]] = [
    ("SERVER localhost:8823", Server("localhost:8823")),
    ("PING 1490197665618", Ping("1490197665618")),
    ("NAME synapse.app.appservice", Name("synapse.app.appservice")),
    ("REPLICATE", Replicate()),
    ("POSITION events master 1 1", Position("events", "master", 1, 1)),
    ("POSITION caches w1 -5 53", Position("caches", "w1", -5, 53)),
    (
        'RDATA caches master 2 ["get_user_by_id",["@01:localhost:8823"],1490197670513]',
        Rdata("caches", "master", 2, ["get_user_by_id", ["@01:localhost:8823"], 1490197670513]),
    ),
    (
        'RDATA caches master batch ["get_user_by_id",null,1]',
        Rdata("caches", "master", None, ["get_user_by_id", None, 1]),
    ),
    ("ERROR server stopping", Error("server stopping")),
    (
        "USER_SYNC instance @a:b DEVICE start 1490197670513",
        UserSync("instance", "@a:b", "DEVICE", True, 1490197670513),
    ),
    ("USER_SYNC instance @a:b None end 1", UserSync("instance", "@a:b", None, False, 1)),
    ("CLEAR_USER_SYNC instance", ClearUserSync("instance")),
    ("FEDERATION_ACK sender1 42", FederationAck("sender1", 42)),
    (
        'USER_IP @a:b ["token","127.0.0.1","curl 8",null,7]',
        UserIp("@a:b", "token", "127.0.0.1", "curl 8", None, 7),
    ),
    ("REMOTE_SERVER_UP example.com", RemoteServerUp("example.com")),
    ('LOCK_RELEASED ["master","lock","the key"]', LockReleased("master", "lock", "the key")),
    ("NEW_ACTIVE_TASK abc", NewActiveTask("abc")),
    ("CANCEL_TASK abc", CancelTask("abc")),
]


@pytest.mark.parametrize(("line", "command"), LINES)
def test_lines_are_read_and_written(line: str, command: Command) -> None:
    assert parse_line(line) == command
    assert format_line(command) == line


def test_variants_that_other_versions_write_are_read() -> None:
    assert parse_line("REPLICATE ") == Replicate()
    assert parse_line("USER_SYNC i @a:b start 5") == UserSync("i", "@a:b", None, True, 5)
    row = 'RDATA events m 14 ["$1:a",\t"!r:a", "m.room.guest_access","",null]'
    assert parse_line(row) == Rdata(
        "events", "m", 14, ["$1:a", "!r:a", "m.room.guest_access", "", None]
    )


@pytest.mark.parametrize(
    "line",
    [
        "RDATA",
        "RDATA caches",
        "RDATA caches master 5",
        "RDATA caches master five []",
        "RDATA caches master 1_0 []",
        "RDATA caches master ٣ []",
        "RDATA caches master 99999999999999999999999 []",
        "RDATA caches  5 []",
        "RDATA caches master 5 [",
        "RDATA caches master 5 [NaN]",
        "RDATA caches master 5 [Infinity]",
        "RDATA caches master 5 " + "[" * 200_000,
        "RDATA caches master 5 " + "1" * 5_000,
        "POSITION caches master 1",
        "POSITION caches master 1 2 3",
        "POSITION caches master 1 x",
        "USER_SYNC i @a:b DEVICE maybe 5",
        "USER_SYNC i @a:b",
        "CLEAR_USER_SYNC",
        "CLEAR_USER_SYNC a b",
        "FEDERATION_ACK sender",
        "FEDERATION_ACK sender x",
        'USER_IP @a:b ["token"]',
        "USER_IP @a:b {}",
        "REMOTE_SERVER_UP",
        'LOCK_RELEASED ["a","b"]',
        "LOCK_RELEASED",
    ],
)
def test_broken_arguments_are_refused(line: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_line(line)
    assert not isinstance(caught.value, UnknownCommand)
    assert str(caught.value).startswith(line.partition(" ")[0])


@pytest.mark.parametrize(
    "line", ["HELLO", "rdata a b 1 []", "GET / HTTP/1.1", "\x00\x01", "X" * 999]
)
def test_unknown_commands_are_told_apart(line: str) -> None:
    with pytest.raises(UnknownCommand) as caught:
        parse_line(line)
    assert len(str(caught.value)) < 400


def test_an_access_token_is_not_shown() -> None:
    assert "secret" not in repr(UserIp("@a:b", "secret", "127.0.0.1", "curl", None, 7))


@pytest.mark.parametrize("text", ["two\nlines", "two\rlines"])
def test_a_command_of_two_lines_is_not_written(text: str) -> None:
    with pytest.raises(CommandError):
        format_line(Error(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
words = st.text(st.characters(codec="utf-8", exclude_characters=" \n\r"), min_size=1, max_size=20)


@given(words, words, st.none() | st.integers(-(2**63), 2**63 - 1), json_values)
def test_any_row_survives_the_wire(
    stream: str, writer: str, token: int | None, row: object
) -> None:
    command = Rdata(stream, writer, token, row)
    data = encode_lines([command])
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert parse_line(data[:-1].decode()) == command
    assert json.loads(data.decode().split(" ", 4)[4]) == row


names = st.sampled_from([line.partition(" ")[0] for line, _ in LINES])
pieces = st.sampled_from([" ", "1", "batch", "start", "[", "]", '"a"', ",", "null", "{}"]) | words


@given(names, st.lists(pieces, max_size=12).map("".join))
def test_no_line_does_worse_than_an_error(name: str, arguments: str) -> None:
    line = f"{name} {arguments}"
    try:
        command = parse_line(line)
    except CommandError:
        return
    assert parse_line(format_line(command)) == command
