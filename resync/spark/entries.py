"""State entries on their way back from tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from resync.state.conflicts import Key


def by_problem(numbers: Iterable[int], results: Iterable[Any]) -> dict[int, dict[Key, str]]:
    """The state entries in what `tasks.check_remaining` or `tasks.decide_problems` gave."""
    from resync.spark.tasks import to_text

    found: dict[int, dict[Key, str]] = {number: {} for number in numbers}
    for entries in results:
        columns = (entries.column(name).to_pylist() for name in entries.schema.names)
        for number, key_type, state_key, event_id in zip(*columns, strict=True):
            found[number][to_text(key_type), to_text(state_key)] = to_text(event_id)
    return found
