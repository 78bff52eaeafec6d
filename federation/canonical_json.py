"""Canonical JSON: parsing what other servers send, and the one encoding that is hashed and signed.

Source: specification appendices, "Canonical JSON".
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import canonicaljson
import orjson

from federation.errors import InvalidEvent, InvalidJson

MAX_SAFE_INTEGER = 2**53 - 1
"""Integers from `-MAX_SAFE_INTEGER` to `MAX_SAFE_INTEGER` are allowed in canonical JSON."""

MAX_NESTING = 400
"""Deepest nesting of arrays and objects that is parsed. The specification sets no limit; this one
keeps the answer independent of how deep in Python's stack the parser happens to be called."""

_ORJSON_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


class _FloatFound(Exception):
    """Raised by the parser that refuses floats."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _refuse_float(text: str) -> NoReturn:
    raise _FloatFound(text)


_any_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_floatless_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_refuse_float)


def encode(value: Any) -> bytes:
    """The canonical JSON of `value`.

    Floats and integers of any size are encoded, as servers do for room versions 1 to 5: a float
    as the shortest text that reads back as the same number. `check_strict` is what refuses them.

    Raises:
        InvalidJson: NaN, Infinity, a lone surrogate, absurd nesting or something JSON cannot hold.
    """
    try:
        return canonicaljson.encode_canonical_json(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidJson(f"no canonical JSON: {_explain(error)}") from None


def encode_floatless(value: Any) -> bytes:
    """As `encode`, several times faster, for a value that is known to hold no floats.

    Raises:
        InvalidJson: see `encode`.
    """
    try:
        return orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        # Large integers and deep nesting are beyond this encoder; the other one decides.
        return encode(value)


def encode_strict(value: Any) -> bytes:
    """As `encode_floatless`, refusing integers that canonical JSON does not allow.

    Raises:
        InvalidEvent: see `check_strict`.
        InvalidJson: see `encode`.
    """
    try:
        return orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        check_strict(value)
        return encode(value)


def check_strict(value: Any) -> None:
    """Check that a parsed JSON value keeps to canonical JSON, as room versions from 6 on demand.

    Raises:
        InvalidEvent: a float, or an integer outside [-(2**53)+1, (2**53)-1].
    """
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is dict:
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
        elif kind is int:
            if not -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER:
                raise InvalidEvent("an integer is outside the range of canonical JSON")
        elif kind is float:
            raise InvalidEvent("a number is not an integer: floats are not canonical JSON")


def parse_json(text: str | bytes | bytearray) -> Any:
    """The value that JSON text holds. Of duplicate keys the last one counts.

    Raises:
        InvalidJson: not JSON, not UTF-8, NaN or Infinity, or nested deeper than `MAX_NESTING`.
    """
    return _parse(text, _any_decoder)


def parse_noting_floats(text: str) -> tuple[Any, bool]:
    """As `parse_json`, and whether the text holds a number that is not written as an integer.

    Raises:
        InvalidJson: see `parse_json`.
    """
    try:
        return _parse(text, _floatless_decoder), False
    except _FloatFound:
        return _parse(text, _any_decoder), True


def _parse(text: str | bytes | bytearray, decoder: json.JSONDecoder) -> Any:
    try:
        if not isinstance(text, str):
            text = text.decode("utf-8")
        # Counting is far cheaper than measuring, and nearly always enough.
        if text.count("[") + text.count("{") > MAX_NESTING and _nesting(text) > MAX_NESTING:
            raise InvalidJson(f"not JSON: nested deeper than {MAX_NESTING} levels")
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"not JSON: {_explain(error)}") from None


def _nesting(text: str) -> int:
    """How deep arrays and objects are nested in `text`, which need not be valid JSON."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, UnicodeEncodeError):
        return "a string holds a lone surrogate"
    return str(error)
