"""What a resident answers, before it becomes bytes on a socket.

Events are kept as the JSON they will be sent as, so an answer of 100 MB is put together from
pieces that exist already, and lies can be told about single events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from federation.canonical_json import encode

CHUNK_BYTES = 128 * 1024
"""About as much as is handed to the socket at once."""

Field = bytes | list[bytes]
"""One field of an answer: its JSON, or the JSON of each element of an array."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer whose body is a JSON object.

    Attributes:
        fields: the body, in the order in which it is sent.
        status: the HTTP status.
    """

    fields: Mapping[str, Field] = field(default_factory=dict)
    status: int = 200

    @classmethod
    def of(cls, status: int = 200, **values: Any) -> Answer:
        """An answer from plain values; a list becomes an array of separate elements."""
        return cls(
            {
                name: [encode(item) for item in value] if type(value) is list else encode(value)
                for name, value in values.items()
            },
            status,
        )

    def with_field(self, name: str, value: Field) -> Answer:
        """This answer with one field added or changed."""
        return replace(self, fields={**self.fields, name: value})

    def items(self, name: str) -> list[bytes]:
        """The elements of an array; empty if there is no such array."""
        value = self.fields.get(name)
        return value if isinstance(value, list) else []

    def chunks(self) -> Iterator[bytes]:
        """The body, in pieces of about `CHUNK_BYTES`."""
        buffer = bytearray(b"{")
        for number, (name, value) in enumerate(self.fields.items()):
            buffer += (b"," if number else b"") + encode(name) + b":"
            if isinstance(value, bytes):
                buffer += value
                continue
            buffer += b"["
            for position, item in enumerate(value):
                if position:
                    buffer += b","
                buffer += item
                if len(buffer) >= CHUNK_BYTES:
                    yield bytes(buffer)
                    buffer.clear()
            buffer += b"]"
        buffer += b"}"
        yield bytes(buffer)

    def size(self) -> int:
        """The length of the body in bytes."""
        total = 2 + max(0, len(self.fields) - 1)
        for name, value in self.fields.items():
            total += len(encode(name)) + 1
            if isinstance(value, bytes):
                total += len(value)
            else:
                total += 2 + sum(map(len, value)) + max(0, len(value) - 1)
        return total


class RefusedError(Exception):
    """A request that is answered with a Matrix error.

    Attributes:
        status: the HTTP status.
        errcode, error: as the body has them.
        fields: more of the body, such as `retry_after_ms`.
    """

    def __init__(self, status: int, errcode: str, error: str, **fields: Any) -> None:
        super().__init__(f"{status} {errcode}: {error}")
        self.status = status
        self.errcode = errcode
        self.error = error
        self.fields = fields

    def answer(self) -> Answer:
        """The answer to send."""
        return Answer.of(self.status, errcode=self.errcode, error=self.error, **self.fields)
