"""What runs in Spark's Python processes: pure functions over Arrow record batches.

They are importable, not closures, so that nothing but their arguments is sent along. Text travels
as bytes: hostile events hold lone surrogates, which Arrow's strings cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from federation.checks import Outcome, VerifyKey, check_pdus

OUTCOMES = tuple(Outcome)
"""The outcomes by the numbers that stand for them in `CHECKS`."""
CHECKS = "index int, outcome tinyint, event_id binary, reason binary"
"""The schema of `check_batches`' results."""
_CHECKS = pa.schema(
    [
        ("index", pa.int32()),
        ("outcome", pa.int8()),
        ("event_id", pa.binary()),
        ("reason", pa.binary()),
    ]
)


class Keys(Protocol):
    """A broadcast variable with the keys of servers."""

    @property
    def value(self) -> Mapping[tuple[str, str], VerifyKey]:
        """By server name and key id."""


def to_bytes(text: str) -> bytes:
    """Text as bytes, whatever it holds."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The reverse of `to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def echo(batches: Iterable[Any]) -> Iterator[Any]:
    """Gives back what it is given: the task that loads this module into a new process."""
    yield from batches


def check_batches(
    batches: Iterable[Any], *, room_version: str, room_id: str, keys: Keys
) -> Iterator[Any]:
    """`check_pdus` over batches with the columns `index` and `json`; gives `CHECKS`."""
    for batch in batches:
        texts = [to_text(data) for data in batch.column("json").to_pylist()]
        checks = check_pdus(texts, room_version, room_id, keys.value)
        yield pa.record_batch(
            [
                batch.column("index"),
                pa.array([OUTCOMES.index(check.outcome) for check in checks], pa.int8()),
                pa.array(
                    [None if c.event_id is None else to_bytes(c.event_id) for c in checks],
                    pa.binary(),
                ),
                pa.array([to_bytes(check.reason) for check in checks], pa.binary()),
            ],
            schema=_CHECKS,
        )
