"""Single JSON values in the middle of a text, found by the standard library's C scanner."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]|"', re.DOTALL)


class NotJsonError(ValueError):
    """NaN, Infinity or -Infinity."""


def _refuse_constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not JSON")


def _any_int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_Scanner = Callable[[str, int], tuple[Any, int]]

_scan: _Scanner = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]
_scan_giant_integers: _Scanner = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_any_int
).scan_once  # type: ignore[attr-defined]


def scan_value(text: str, index: int) -> tuple[Any, int]:
    """The JSON value at `index` and where it ends. It may end later still if it is a number.

    Integers too long for Python to convert become infinite floats.

    Raises:
        StopIteration, json.JSONDecodeError: the text is not JSON, or does not hold all of it.
        NotJsonError: NaN or an infinity.
        RecursionError: nested too deep.
    """
    try:
        return _scan(text, index)
    except (StopIteration, json.JSONDecodeError, NotJsonError):
        raise
    except ValueError:
        # Python refuses to convert more than sys.get_int_max_str_digits() digits.
        return _scan_giant_integers(text, index)


def end_of_nested_value(text: str, index: int) -> int:
    """Where the object or array at `index` ends, found without recursion; -1 if it does not."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, index):
        token = match.group()
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
            if depth == 0:
                return match.end()
        elif token == '"':
            return -1
    return -1
