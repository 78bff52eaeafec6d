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

_MAX_HOST_CHARS = 255
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
    return any(isinstance(glob, str) and _matches(glob, host) for glob in globs)


def _matches(glob: str, host: str) -> bool:
    glob = re.sub(r"\*+", "*", glob)
    # Every other character stands for one of the host's.
    if len(glob) - glob.count("*") > min(len(host), _MAX_HOST_CHARS):
        return False
    return _pattern(glob).fullmatch(host) is not None


@lru_cache(maxsize=1000)
def _pattern(glob: str) -> re.Pattern[str]:
    """A pattern that takes linear time, whoever wrote the glob.

    What is between two stars is matched as far left as it can be, which is as good as any place
    further right, so no other place is tried (the groups are atomic).
    """
    first, *others = (
        "".join("." if char == "?" else re.escape(char) for char in part)
        for part in glob.split("*")
    )
    if not others:
        return re.compile(first, re.IGNORECASE | re.DOTALL)
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.IGNORECASE | re.DOTALL)
