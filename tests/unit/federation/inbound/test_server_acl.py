"""Server ACLs, as the client-server API describes them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from federation.inbound import is_allowed_by_acl


@pytest.mark.parametrize(
    ("server_name", "content", "allowed"),
    [
        ("a.example", None, True),
        ("a.example", {}, False),
        ("a.example", {"allow": ["*"]}, True),
        ("a.example:8448", {"allow": ["a.example"]}, True),
        ("A.EXAMPLE", {"allow": ["a.example"]}, True),
        ("a.example", {"allow": ["*"], "deny": ["a.example"]}, False),
        ("b.example", {"allow": ["*"], "deny": ["a.example"]}, True),
        ("evil.example", {"allow": ["*"], "deny": ["*.example"]}, False),
        ("a1.example", {"allow": ["a?.example"]}, True),
        ("a.example", {"allow": ["a?.example"]}, False),
        ("axexample", {"allow": ["a.example"]}, False),
        ("1.2.3.4", {"allow": ["*"]}, True),
        ("1.2.3.4", {"allow": ["*"], "allow_ip_literals": False}, False),
        ("1.2.3.4:8448", {"allow": ["*"], "allow_ip_literals": False}, False),
        ("[::1]:8448", {"allow": ["*"], "allow_ip_literals": False}, False),
        ("1.2.3.4", {"allow": ["*"], "allow_ip_literals": "false"}, True),
        ("a.example", {"allow": "*"}, False),
        ("a.example", {"allow": [7, None, "*"]}, True),
        ("a.example", {"allow": ["*"], "deny": "a.example"}, True),
        ("not a name", {"allow": ["*"]}, False),
        ("a.b.example", {"allow": ["a*b*e*e"]}, True),
        ("a.b.example", {"allow": ["*b*a*"]}, True),
        ("a.b.example", {"allow": ["*e*b*"]}, False),
        ("abab.example", {"allow": ["*ab.example"]}, True),
        ("aa", {"allow": ["a*a*a"]}, False),
        ("a+b.example", {"allow": ["*"]}, False),
    ],
)
def test_acl(server_name: str, content: dict[str, Any] | None, allowed: bool) -> None:
    assert is_allowed_by_acl(server_name, content) is allowed


def test_no_pattern_takes_for_ever() -> None:
    """Tried in every place that they fit, these would take longer than the universe is old."""
    for glob in ("*a" * 100 + "b", "*a?" * 60 + "*b*", "?*" * 120 + "b"):
        assert not is_allowed_by_acl("a" * 230, {"allow": [glob]})


def test_many_stars_in_a_row_are_one_star() -> None:
    started = time.process_time()
    assert not is_allowed_by_acl("a" * 200, {"allow": ["*" * 5000 + "b"]})
    assert time.process_time() - started < 5
