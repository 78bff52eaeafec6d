"""An incremental parser for large answers: one JSON object that holds arrays of PDUs.

The text is buffered and the standard library's C scanner is asked for one array element at a
time. An element that is not complete yet fails to parse and is tried again once the buffer has
doubled, so the work stays linear however small the pieces are. No more than one piece and one
unfinished element is held.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from federation.errors import InvalidResponse
from federation.json_scan import NotJsonError, end_of_nested_value, scan_value

STEP_ELEMENTS: Final = 500
"""How many array elements are parsed before other tasks get their turn."""

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_NUMBER_MAY_GO_ON = frozenset("0123456789.eE+-")


class RawPdu(NamedTuple):
    """A PDU as it came: nothing about it has been checked but that it is a JSON object.

    Attributes:
        pdu: the parsed object. Integers too long for Python to convert are infinite floats here.
        json_text: the exact slice of the body it was parsed from.
    """

    pdu: dict[str, Any]
    json_text: str


class PduBatch(NamedTuple):
    """Some events of one of the arrays, in the order of the body."""

    section: str
    pdus: list[RawPdu]


class Field(NamedTuple):
    """The value of a top-level key that is not one of the streamed arrays, with its JSON text."""

    value: Any
    json_text: str


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """What is still believed of a body.

    Attributes:
        body_bytes: size of the whole body.
        element_chars: JSON text of one array element or other top-level value. Events have at
            most 65,536 bytes in canonical form; escapes and white space may add to that.
        elements: elements of all arrays together.
        string_chars: length of the strings in arrays of strings; longer ones are dropped.
    """

    body_bytes: int = 500 * 1024 * 1024
    element_chars: int = 256 * 1024
    elements: int = 2_000_000
    string_chars: int = 255


class _Expect(Enum):
    """Where in the body the parser stands."""

    OBJECT = auto()
    FIRST_KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    FIRST_ELEMENT_OR_END = auto()
    ELEMENT = auto()
    AFTER_ELEMENT = auto()
    AFTER_VALUE = auto()
    NOTHING = auto()


class _Unreadable:
    """Stands for a value that is nested too deep to be parsed."""


_UNREADABLE = _Unreadable()


class ResponseParser:
    """Parses one body: a JSON object with arrays of PDUs, arrays of strings and small values.

    Usage: `feed` a small piece, call `parse` until it returns None, and so on; `close` at the end
    of the body, `parse` until None once more, then read `strings`, `fields` and `dropped`.

    Arrays under keys that nobody asked for are read past without being kept. A top-level key that
    comes twice is an error, because what came first has been given out already.

    Args:
        destination: whose answer this is, for the errors.
        pdu_arrays: the keys whose arrays hold PDUs.
        string_arrays: the keys whose arrays hold strings, collected in `strings`.
        fields: the keys whose values are kept whole in `fields`.

    Attributes:
        destination, pdu_arrays, limits: as given.
        strings: the collected strings, by key; a key that did not come is absent.
        fields: the kept values, by key.
        dropped: how many elements were left out, by key: PDUs nested too deep to be parsed,
            strings that are too long or not strings at all.
        keys_seen: the keys asked for that have come so far.
        bytes_fed: size of the body so far.
    """

    def __init__(
        self,
        destination: str,
        *,
        pdu_arrays: Collection[str] = (),
        string_arrays: Collection[str] = (),
        fields: Collection[str] = (),
        limits: ParserLimits | None = None,
    ) -> None:
        self.destination = destination
        self.pdu_arrays = frozenset(pdu_arrays)
        self._string_arrays = frozenset(string_arrays)
        self._field_names = frozenset(fields)
        self.limits = limits or ParserLimits()
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._text = ""
        self._index = 0
        self._closed = False
        self._expect = _Expect.OBJECT
        self._key = ""
        self.keys_seen: set[str] = set()
        self._elements_seen = 0
        self._try_at_length = 0
        self._last_error = ""
        self.strings: dict[str, list[str]] = {}
        self.fields: dict[str, Field] = {}
        self.dropped: dict[str, int] = {}
        self.bytes_fed = 0

    def feed(self, data: bytes) -> None:
        """Adds the next piece of the body; small pieces keep each `parse` short.

        Raises:
            InvalidResponse: the body is too large or not UTF-8.
        """
        self.bytes_fed += len(data)
        if self.bytes_fed > self.limits.body_bytes:
            raise self._error(f"the body is larger than {self.limits.body_bytes} bytes")
        self._append(data, final=False)

    def close(self) -> None:
        """Says that the body has ended.

        Raises:
            InvalidResponse: it ends within a UTF-8 sequence.
        """
        self._append(b"", final=True)
        self._closed = True

    def _append(self, data: bytes, *, final: bool) -> None:
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise self._error(f"the body is not UTF-8: {error.reason}") from None
        self._text = self._text[self._index :] + text
        self._index = 0

    def parse(self, max_elements: int = STEP_ELEMENTS) -> PduBatch | None:
        """Parses on, through at most `max_elements` array elements.

        Returns:
            The events found (possibly none), or None when all that was fed has been parsed.

        Raises:
            InvalidResponse: the body is not JSON, was cut off, or does not have its shape.
        """
        while True:
            if self._expect is _Expect.ELEMENT:
                batch = self._parse_elements(max_elements)
                if batch is not None:
                    return batch
                break
            if not self._parse_structure():
                break
        if self._closed and self._expect is not _Expect.NOTHING:
            detail = f" ({self._last_error})" if self._last_error else ""
            raise self._error(
                f"the body is cut off or not JSON, after {self.bytes_fed} bytes{detail}"
            )
        return None

    def _parse_structure(self) -> bool:
        """Takes one token outside the arrays' elements. False if it is not complete yet."""
        self._index = _WHITESPACE.match(self._text, self._index).end()  # type: ignore[union-attr]
        if self._index >= len(self._text):
            return False
        expect = self._expect
        character = self._text[self._index]
        if expect is _Expect.VALUE and not self._starts_streamed_array(character):
            return self._parse_field()
        if expect in (_Expect.FIRST_KEY_OR_END, _Expect.KEY) and character == '"':
            return self._parse_key()
        if expect is _Expect.FIRST_ELEMENT_OR_END and character != "]":
            self._expect = _Expect.ELEMENT
            return True
        following = _NEXT.get((expect, character))
        if following is None:
            raise self._error(
                f"the body is not a JSON object: {character!r} where {_WANTED[expect]} should be"
            )
        self._expect = following
        self._index += 1
        return True

    def _starts_streamed_array(self, character: str) -> bool:
        if self._key in self._field_names:
            return False
        if character == "[":
            if self._key in self._string_arrays:
                self.strings[self._key] = []
            return True
        if self._key in self.pdu_arrays or self._key in self._string_arrays:
            raise self._error(f"`{self._key}` is not an array")
        return False

    def _parse_key(self) -> bool:
        decoded = self._decode()
        if decoded is None:
            return False
        key, end = decoded
        wanted = self.pdu_arrays | self._string_arrays | self._field_names
        if key in wanted:
            if key in self.keys_seen:
                raise self._error(f"the key `{key}` comes twice")
            self.keys_seen.add(key)
        self._key = key
        self._index = end
        self._expect = _Expect.COLON
        return True

    def _parse_field(self) -> bool:
        decoded = self._decode()
        if decoded is None:
            return False
        value, end = decoded
        if self._key in self._field_names:
            if value is _UNREADABLE:
                raise self._error(f"`{self._key}` is nested too deep")
            self.fields[self._key] = Field(value, self._text[self._index : end])
        self._index = end
        self._expect = _Expect.AFTER_VALUE
        return True

    def _parse_elements(self, max_elements: int) -> PduBatch | None:
        """Takes elements while they are complete. None if there was not one."""
        key = self._key
        holds_pdus = key in self.pdu_arrays
        strings = self.strings.get(key)
        pdus: list[RawPdu] = []
        taken = 0
        while self._expect is _Expect.ELEMENT and taken < max_elements:
            self._skip_whitespace()
            index = self._index
            decoded = self._decode()
            if decoded is None:
                break
            value, end = decoded
            if holds_pdus:
                if type(value) is dict:
                    pdus.append(RawPdu(value, self._text[index:end]))
                elif value is _UNREADABLE:
                    self._drop(key)
                else:
                    raise self._error(f"`{key}` holds something that is not an event")
            elif strings is not None:
                if type(value) is str and len(value) <= self.limits.string_chars:
                    strings.append(value)
                else:
                    self._drop(key)
            taken += 1
            self._index = end
            self._after_element()
        self._elements_seen += taken
        if self._elements_seen > self.limits.elements:
            raise self._error(f"the answer lists more than {self.limits.elements} things")
        return PduBatch(key, pdus) if taken else None

    def _skip_whitespace(self) -> None:
        if self._text[self._index : self._index + 1] in (" ", "\n", "\r", "\t"):
            self._index = _WHITESPACE.match(self._text, self._index).end()  # type: ignore[union-attr]

    def _after_element(self) -> None:
        """Takes the comma after an element in the common case; leaves the rest to the others."""
        if self._text[self._index : self._index + 1] == ",":
            self._index += 1
        else:
            self._expect = _Expect.AFTER_ELEMENT

    def _drop(self, key: str) -> None:
        self.dropped[key] = self.dropped.get(key, 0) + 1

    def _decode(self) -> tuple[Any, int] | None:
        """The value at the front of the buffer and where it ends; None if it is not complete."""
        text, index = self._text, self._index
        length = len(text) - index
        if length < self._try_at_length and not self._closed:
            self._check_element_size(length)
            return None
        try:
            value, end = scan_value(text, index)
        except (StopIteration, json.JSONDecodeError) as error:
            self._incomplete(error)
            return None
        except NotJsonError as error:
            raise self._error(str(error)) from None
        except RecursionError:
            value, end = _UNREADABLE, end_of_nested_value(text, index)
            if end < 0:
                self._incomplete(None)
                return None
        if text[index] in "-0123456789" and (end == len(text) or text[end] in _NUMBER_MAY_GO_ON):
            self._incomplete(None)
            return None
        self._check_element_size(end - index)
        self._try_at_length = 0
        self._last_error = ""
        return value, end

    def _incomplete(self, error: Exception | None) -> None:
        length = len(self._text) - self._index
        self._check_element_size(length)
        self._try_at_length = 2 * length
        if isinstance(error, json.JSONDecodeError):
            self._last_error = error.msg
        elif error is not None:
            self._last_error = "Expecting value"

    def _check_element_size(self, length: int) -> None:
        if length > self.limits.element_chars:
            detail = f" or is not JSON ({self._last_error})" if self._last_error else ""
            raise self._error(
                f"something in `{self._key}` is longer than {self.limits.element_chars} "
                f"characters{detail}"
            )

    def _error(self, reason: str) -> InvalidResponse:
        return InvalidResponse(self.destination, reason)


_NEXT: Final = {
    (_Expect.OBJECT, "{"): _Expect.FIRST_KEY_OR_END,
    (_Expect.FIRST_KEY_OR_END, "}"): _Expect.NOTHING,
    (_Expect.COLON, ":"): _Expect.VALUE,
    (_Expect.VALUE, "["): _Expect.FIRST_ELEMENT_OR_END,
    (_Expect.FIRST_ELEMENT_OR_END, "]"): _Expect.AFTER_VALUE,
    (_Expect.AFTER_ELEMENT, ","): _Expect.ELEMENT,
    (_Expect.AFTER_ELEMENT, "]"): _Expect.AFTER_VALUE,
    (_Expect.AFTER_VALUE, ","): _Expect.KEY,
    (_Expect.AFTER_VALUE, "}"): _Expect.NOTHING,
}
"""What follows a punctuation mark."""

_WANTED: Final = {
    _Expect.OBJECT: "`{`",
    _Expect.FIRST_KEY_OR_END: "a key or `}`",
    _Expect.KEY: "a key",
    _Expect.COLON: "`:`",
    _Expect.VALUE: "a value",
    _Expect.FIRST_ELEMENT_OR_END: "an element or `]`",
    _Expect.ELEMENT: "an element",
    _Expect.AFTER_ELEMENT: "`,` or `]`",
    _Expect.AFTER_VALUE: "`,` or `}`",
    _Expect.NOTHING: "the end",
}
