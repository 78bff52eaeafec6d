"""Whether a room lets a server take part. Pure.

Source: client-server API, "Server Access Control Lists (ACLs) for rooms".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from federation.errors import InvalidIdentifier
from federation.identifiers import parse_server_name

_IP_LITERAL = re.compile(r"\d+\.\d+\.\d+\.\d+")


def is_allowed_by_acl(server_name: str, content: Mapping[str, Any] | None) -> bool:
    """Whether `server_name` may take part in a room.

    Args:
        content: of the room's `m.room.server_acl` event; None where it has none.
    """
    if content is None:
        return True
    try:
        host = parse_server_name(server_name).host
    except InvalidIdentifier:
        return False
    if content.get("allow_ip_literals", True) is False and (
        ":" in host or _IP_LITERAL.fullmatch(host)
    ):
        return False
    if _any_matches(content.get("deny"), host):
        return False
    return _any_matches(content.get("allow"), host)


def _any_matches(globs: Any, host: str) -> bool:
    if not isinstance(globs, list):
        return False
    return any(isinstance(glob, str) and _pattern(glob).fullmatch(host) for glob in globs)


@lru_cache(maxsize=10_000)
def _pattern(glob: str) -> re.Pattern[str]:
    # Runs of stars are one star: many in a row would make matching slow.
    parts = re.findall(r"\*+|\?|[^*?]+", glob)
    translated = "".join(
        ".*" if part[0] == "*" else "." if part == "?" else re.escape(part) for part in parts
    )
    return re.compile(translated, re.IGNORECASE | re.DOTALL)
