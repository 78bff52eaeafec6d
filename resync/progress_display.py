"""Progress for people: a live bar on a terminal, plain lines everywhere else.

Lines are made for logs and pipes: one when the phase changes, one when it ends, and in between
at most one every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)

from resync.progress import RoomProgress

_SECONDS_BETWEEN_LINES = 2.0


class ProgressDisplay(Protocol):
    """Something that shows progress between `__enter__` and `__exit__`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, progress: RoomProgress) -> None:
        """Show that a room is where `progress` says it is."""


def display_for(stream: TextIO) -> ProgressDisplay:
    """The display that fits the stream: a bar if it is a terminal that can move its cursor."""
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarDisplay(console)
    return LineDisplay(stream)


class BarDisplay:
    """One bar for each room, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.fields[room_id]}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, Task] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, progress: RoomProgress) -> None:
        """Redraw the bar of a room."""
        task = self._tasks.get(progress.room_id)
        if task is None:
            task = self._tasks[progress.room_id] = self._add(progress.room_id)
        task.description = progress.phase
        task.fields["counted"] = f"{progress.done}/{progress.total}" if progress.total else ""
        task.fields["detail"] = printable(progress.detail)
        # Set here and not by `Progress.update`, which cannot go back to an unknown total, and
        # for which a room is finished as soon as one phase is.
        task.completed = 1 if progress.finished else progress.done
        task.total = 1 if progress.finished else progress.total or None
        if progress.finished and task.finished_time is None:
            task.finished_time = task.elapsed
        self._bars.refresh()

    def _add(self, room_id: str) -> Task:
        task_id = self._bars.add_task(
            "", total=None, room_id=printable(room_id), counted="", detail=""
        )
        return next(task for task in self._bars.tasks if task.id == task_id)


class LineDisplay:
    """One line for each thing worth a line."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown: dict[str, tuple[RoomProgress, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.flush()

    def show(self, progress: RoomProgress) -> None:
        """Write a line, unless the last one about this room is recent and says nearly the same."""
        now = self._clock()
        last = self._shown.get(progress.room_id)
        if last is not None:
            before, at = last
            news = before.phase != progress.phase or before.detail != progress.detail
            ended = progress.total > 0 and progress.done == progress.total
            if before == progress or not (news or ended or now - at >= _SECONDS_BETWEEN_LINES):
                return
        self._shown[progress.room_id] = (progress, now)
        self._stream.write(describe(progress) + "\n")
        self._stream.flush()


def describe(progress: RoomProgress) -> str:
    """One line: the room, the phase, how far it is, and what it waits for."""
    line = f"{printable(progress.room_id)}: {progress.phase}"
    if progress.total:
        percent = 100 * progress.done // progress.total
        line += f" {progress.done}/{progress.total} ({percent} %)"
    elif progress.done:
        line += f" {progress.done}"
    if progress.detail:
        line += f" - {printable(progress.detail)}"
    return line


def printable(text: str) -> str:
    """Text from other servers without the characters that could drive a terminal."""
    return "".join(one if one.isprintable() else "�" for one in text)
