"""Synapse's answers about state resolution and authorization, from a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from federation.events import Event, StateKey
from tests.interop.synapse_server import synapse_python

State = Mapping[tuple[str, str], str]
SCRIPT = Path(__file__).with_name("synapse_resolver.py")


class Resolution(NamedTuple):
    """`state` is None where Synapse raised `exception`; `own_difference`: see the script."""

    state: dict[tuple[str, str], str] | None
    exception: str
    own_difference: bool


class Verdict(NamedTuple):
    """`step` is "" for an accepted event, else the check that rejected it: see the script."""

    step: str
    reason: str


class SynapseOracle:
    """Asks `synapse_resolver.py`, which runs in the virtual environment that has Synapse."""

    def __enter__(self) -> SynapseOracle:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(synapse_python()), str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._process.wait(10)
            self._errors.seek(0)
            raise RuntimeError(f"synapse_resolver.py ended: {self._errors.read().decode()}")
        return json.loads(answer)

    def load_room(
        self, room_version: str, events: Iterable[Event], rejected: Collection[str] = ()
    ) -> list[str | None]:
        """Makes these the events that the other methods are about.

        Returns the event ids as Synapse computes them, None for what it cannot represent.
        """
        answer = self._ask(
            {
                "op": "room",
                "room_version": room_version,
                "events": [event.pdu for event in events],
                "rejected": sorted(rejected),
            }
        )
        return list(answer["event_ids"])

    def resolve(self, state_sets: Sequence[State]) -> Resolution:
        answer = self._ask({"op": "resolve", "state_sets": _entries(state_sets)})
        if "exception" in answer:
            return Resolution(None, answer["exception"], False)
        state = {(event_type, key): event_id for event_type, key, event_id in answer["state"]}
        return Resolution(state, "", answer["own_difference"])

    def verdicts(
        self, checks: Iterable[tuple[str, Mapping[StateKey, str] | State]]
    ) -> list[Verdict]:
        """Whether each event is accepted, given the state before it."""
        questions = [
            {"event_id": event_id, "state": list(before.values())} for event_id, before in checks
        ]
        answer = self._ask({"op": "auth", "checks": questions})
        return [Verdict(verdict["step"], verdict["reason"]) for verdict in answer["verdicts"]]

    def time_resolution(self, state_sets: Sequence[State], repeat: int = 3) -> list[float]:
        """Seconds that Synapse needs for a resolution in memory, `repeat` times."""
        answer = self._ask({"op": "time", "state_sets": _entries(state_sets), "repeat": repeat})
        return list(answer["seconds"])


def _entries(state_sets: Sequence[State]) -> list[list[tuple[str, str, str]]]:
    return [
        [(event_type, key, event_id) for (event_type, key), event_id in state.items()]
        for state in state_sets
    ]
