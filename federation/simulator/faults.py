"""Faults on request: what a resident does wrong, at which endpoint, and how often.

A fault takes part in a request at up to three points: before it is handled, when the answer is
known, and while the body is sent. Several faults may strike one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from federation.simulator.answers import Answer, RefusedError

ANY = "*"
"""Stands for every endpoint in a plan."""


class CutConnectionError(Exception):
    """The connection is to be broken off here."""


class Fault:
    """One way to misbehave; a base that does nothing wrong."""

    async def before(self, released: asyncio.Event) -> None:
        """Called before the request is handled. Raises `RefusedError` or `CutConnectionError`."""

    def alter(self, answer: Answer) -> Answer:
        """The answer to give instead of `answer`."""
        return answer

    def announced_size(self, size: int) -> int:
        """The `Content-Length` to announce for a body of `size` bytes."""
        return size

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        """The body to send instead of `chunks`. May raise `CutConnectionError`.

        Args:
            size: the length of `chunks` in all.
            released: set when the faults are cleared or the resident stops: end any wait.
        """
        async for chunk in chunks:
            yield chunk


@dataclass(frozen=True, slots=True)
class Refuse(Fault):
    """Answers with a Matrix error. 429 may carry `retry_after_ms`."""

    status: int = 403
    errcode: str = "M_FORBIDDEN"
    error: str = "Refused by the simulator"
    retry_after_ms: int | None = None

    async def before(self, released: asyncio.Event) -> None:
        more = {} if self.retry_after_ms is None else {"retry_after_ms": self.retry_after_ms}
        raise RefusedError(self.status, self.errcode, self.error, **more)


@dataclass(frozen=True, slots=True)
class Disconnect(Fault):
    """Breaks the connection off without an answer."""

    async def before(self, released: asyncio.Event) -> None:
        raise CutConnectionError


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Sends nothing for `seconds` (None: until released), then answers."""

    seconds: float | None = None

    async def before(self, released: asyncio.Event) -> None:
        await _wait(released, self.seconds)


@dataclass(frozen=True, slots=True)
class StallMidway(Fault):
    """Sends this share of the body, then nothing for `seconds` (None: until released)."""

    after: float = 0.5
    seconds: float | None = None

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        async for chunk, is_cut in _cut_at(chunks, int(size * self.after)):
            yield chunk
            if is_cut:
                await _wait(released, self.seconds)


@dataclass(frozen=True, slots=True)
class Truncate(Fault):
    """Announces the whole body, sends this share of it, and breaks the connection off."""

    after: float = 0.5

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        async for chunk, is_cut in _cut_at(chunks, int(size * self.after)):
            yield chunk
            if is_cut:
                raise CutConnectionError


@dataclass(frozen=True, slots=True)
class CutShort(Fault):
    """Sends this share of the body as if it were all of it: the JSON ends too early."""

    after: float = 0.5

    def announced_size(self, size: int) -> int:
        return int(size * self.after)

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        async for chunk, is_cut in _cut_at(chunks, int(size * self.after)):
            yield chunk
            if is_cut:
                return


@dataclass(frozen=True, slots=True)
class Garbage(Fault):
    """Sends a body that is not JSON."""

    body: bytes = b"<html><body>502 Bad Gateway</body></html>"

    def announced_size(self, size: int) -> int:
        return len(self.body)

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        yield self.body


@dataclass(frozen=True, slots=True)
class Oversize(Fault):
    """Sends `padding` bytes of a meaningless field ahead of the answer; the JSON is valid."""

    padding: int = 1 << 30

    def announced_size(self, size: int) -> int:
        return size + self.padding + len(b'"padding":"",')

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        yield b'{"padding":"'
        block = b"x" * 65536
        for start in range(0, self.padding, len(block)):
            yield block[: self.padding - start]
        yield b'",'
        first = True
        async for chunk in chunks:
            yield chunk[1:] if first else chunk
            first = False


@dataclass(frozen=True, slots=True)
class Trickle(Fault):
    """Sends `piece` bytes every `interval` seconds; slow, but never silent for long.

    Once released it goes on at full speed.
    """

    piece: int = 1
    interval: float = 0.1

    async def send(
        self, chunks: AsyncIterator[bytes], size: int, released: asyncio.Event
    ) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            start = 0
            while start < len(chunk):
                piece = len(chunk) - start if released.is_set() else self.piece
                yield chunk[start : start + piece]
                start += piece
                await _wait(released, self.interval)


@dataclass(frozen=True, slots=True)
class Lie(Fault):
    """Answers something else; `federation.simulator.lies` has a collection."""

    tell: Callable[[Answer], Answer]

    def alter(self, answer: Answer) -> Answer:
        return self.tell(answer)


@dataclass(frozen=True, slots=True)
class IgnoreOmitMembers(Fault):
    """Answers `/send_join` with the full state although partial state was asked for."""


@dataclass(slots=True)
class _Planned:
    endpoint: str
    fault: Fault
    times: int | None
    skip: int
    containing: str


@dataclass(slots=True)
class FaultPlan:
    """The faults that one resident has been told to show."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    _planned: list[_Planned] = field(default_factory=list)

    def add(
        self,
        endpoint: str,
        fault: Fault,
        *,
        times: int | None = None,
        skip: int = 0,
        containing: str = "",
    ) -> None:
        """Show `fault` at `endpoint`.

        Args:
            endpoint: a name of `federation.simulator.resident.ENDPOINTS`, or `ANY`.
            times: for how many requests; None: until `clear`.
            skip: how many requests to answer properly first.
            containing: only for requests whose path and query, decoded, have this in them, such
                as a room or event id.
        """
        self._planned.append(_Planned(endpoint, fault, times, skip, containing))

    def take(self, endpoint: str, target: str) -> list[Fault]:
        """The faults for one request, which counts towards `times` and `skip`."""
        taken = []
        for planned in self._planned:
            if planned.endpoint not in (ANY, endpoint) or planned.containing not in target:
                continue
            if planned.skip:
                planned.skip -= 1
                continue
            if planned.times is not None:
                planned.times -= 1
            taken.append(planned.fault)
        self._planned = [planned for planned in self._planned if planned.times != 0]
        return taken

    def clear(self, endpoint: str = ANY) -> None:
        """Forget the faults of `endpoint`, or all; requests that are stalled go on."""
        self._planned = [
            planned for planned in self._planned if endpoint not in (ANY, planned.endpoint)
        ]
        self.release()

    def release(self) -> None:
        """Let the requests that are stalled now go on."""
        self.released.set()
        self.released = asyncio.Event()

    # The usual faults by name; `when` is as for `add`.

    def refuse(
        self, endpoint: str, status: int = 403, errcode: str = "M_FORBIDDEN", **when: Any
    ) -> None:
        """Answer with an error."""
        self.add(endpoint, Refuse(status, errcode), **when)

    def rate_limit(self, endpoint: str, retry_after_ms: int | None = 1000, **when: Any) -> None:
        """Answer 429."""
        refuse = Refuse(429, "M_LIMIT_EXCEEDED", "Too many requests", retry_after_ms)
        self.add(endpoint, refuse, **when)

    def disconnect(self, endpoint: str, **when: Any) -> None:
        """Break the connection off."""
        self.add(endpoint, Disconnect(), **when)

    def stall(self, endpoint: str, seconds: float | None = None, **when: Any) -> None:
        """Be silent before the first byte."""
        self.add(endpoint, Stall(seconds), **when)

    def stall_midway(
        self, endpoint: str, after: float = 0.5, seconds: float | None = None, **when: Any
    ) -> None:
        """Be silent in the middle of the body."""
        self.add(endpoint, StallMidway(after, seconds), **when)

    def truncate(self, endpoint: str, after: float = 0.5, **when: Any) -> None:
        """Break off in the middle of the body."""
        self.add(endpoint, Truncate(after), **when)

    def lie(self, endpoint: str, tell: Callable[[Answer], Answer], **when: Any) -> None:
        """Answer something untrue."""
        self.add(endpoint, Lie(tell), **when)


async def _wait(released: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await released.wait()
    except TimeoutError:
        pass


async def _cut_at(chunks: AsyncIterator[bytes], position: int) -> AsyncIterator[tuple[bytes, bool]]:
    """`chunks`, with the one that spans `position` split there; True with what ends at it."""
    sent = 0
    cut = False
    async for chunk in chunks:
        if not cut and sent + len(chunk) >= position:
            cut = True
            yield chunk[: position - sent], True
            yield chunk[position - sent :], False
        else:
            yield chunk, False
        sent += len(chunk)


async def stream(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """`chunks`, asynchronously, so that other tasks run between them."""
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)
