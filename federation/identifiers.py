"""The grammar of server names, user ids, room ids and event ids.

Source: specification appendices, "Identifier Grammar".
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from federation.errors import InvalidIdentifier

MAX_IDENTIFIER_BYTES = 255
"""Longest user id, room id or event id, in bytes of UTF-8, sigil included."""

_SERVER_NAME = re.compile(
    r"""
    (?P<host>
        \[ [0-9A-Fa-f:.]{2,45} \]     # IPv6address
      | [0-9A-Za-z.-]{1,255}          # IPv4address or dns-name
    )
    (?: : (?P<port> [0-9]{1,5} ) )?
    """,
    re.VERBOSE,
)
_LOOKS_LIKE_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_HASH = re.compile(r"[0-9A-Za-z_-]{43}")


class ServerName(NamedTuple):
    """A server name, taken apart.

    Attributes:
        host: DNS name, IPv4 address, or IPv6 address without its brackets.
        port: None where the name has none.
    """

    host: str
    port: int | None

    @property
    def is_ip_literal(self) -> bool:
        """Whether `host` is an IP address and not a DNS name."""
        return ":" in self.host or _LOOKS_LIKE_IPV4.fullmatch(self.host) is not None


def parse_server_name(server_name: str) -> ServerName:
    """Take `host`, `host:port` or `[IPv6]:port` apart.

    Raises:
        InvalidIdentifier: it does not follow the grammar of server names.
    """
    match = _SERVER_NAME.fullmatch(server_name) if type(server_name) is str else None
    if match is None:
        raise InvalidIdentifier(f"{shown(server_name)} is not a server name")
    host, port = match["host"], match["port"]
    try:
        if host.startswith("["):
            host = host[1:-1]
            ipaddress.IPv6Address(host)
        elif _LOOKS_LIKE_IPV4.fullmatch(host):
            # Leading zeros are legal here and refused by ipaddress.
            if any(int(part) > 255 for part in host.split(".")):
                raise ValueError(host)
        elif host.strip(".") == "" or ".." in host:
            raise ValueError(host)
    except ValueError:
        raise InvalidIdentifier(
            f"{shown(server_name)} is not a server name: its host is malformed"
        ) from None
    if port is not None and int(port) > 65535:
        raise InvalidIdentifier(f"{shown(server_name)} is not a server name: port out of range")
    return ServerName(host, None if port is None else int(port))


def check_server_name(server_name: str) -> None:
    """Check the grammar of a server name.

    Raises:
        InvalidIdentifier: it does not follow it.
    """
    parse_server_name(server_name)


def check_user_id(user_id: str) -> None:
    """Check the grammar of a user id. Historical user ids are accepted, as servers must.

    Raises:
        InvalidIdentifier: it does not follow the grammar.
    """
    _check_with_domain(user_id, "@", "user id")


def domain_of(user_id: str) -> str:
    """The server name in a user id: all that follows its first colon.

    The id is not checked any further; `check_user_id` does.

    Raises:
        InvalidIdentifier: there is no `@` at its start or no colon in it.
    """
    if type(user_id) is not str or not user_id.startswith("@") or ":" not in user_id:
        raise InvalidIdentifier(f"{shown(user_id)} is not a user id")
    return user_id.partition(":")[2]


def check_room_id(room_id: str) -> None:
    """Check the grammar of a room id: `!localpart:server` or, from version 12 on, `!hash`.

    Raises:
        InvalidIdentifier: it follows neither form.
    """
    if type(room_id) is str and room_id[:1] == "!" and _HASH.fullmatch(room_id, 1):
        return
    _check_with_domain(room_id, "!", "room id")


def check_event_id(event_id: str) -> None:
    """Check what every event id must have: a `$`, something after it, and at most 255 bytes.

    Raises:
        InvalidIdentifier: it has not.
    """
    _check_common(event_id, "$", "event id")


def _check_with_domain(identifier: str, sigil: str, kind: str) -> None:
    _check_common(identifier, sigil, kind)
    localpart, colon, domain = identifier[1:].partition(":")
    if not colon:
        raise InvalidIdentifier(f"{shown(identifier)} is not a {kind}: it names no server")
    if "\0" in localpart:
        raise InvalidIdentifier(f"{shown(identifier)} is not a {kind}: it holds a NUL")
    try:
        parse_server_name(domain)
    except InvalidIdentifier as error:
        raise InvalidIdentifier(f"{shown(identifier)} is not a {kind}: {error}") from None


def _check_common(identifier: str, sigil: str, kind: str) -> None:
    if type(identifier) is not str or not identifier.startswith(sigil) or len(identifier) < 2:
        raise InvalidIdentifier(f"{shown(identifier)} is not a {kind}")
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidIdentifier(
            f"{shown(identifier)} is not a {kind}: it holds a lone surrogate"
        ) from None
    if size > MAX_IDENTIFIER_BYTES:
        raise InvalidIdentifier(
            f"{shown(identifier)} is not a {kind}: longer than {MAX_IDENTIFIER_BYTES} bytes"
        )


def shown(value: object) -> str:
    """`value` for an error message: quoted, ASCII, and short whatever a stranger put in it."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    return ascii(value if len(value) <= 100 else value[:100] + "…")
