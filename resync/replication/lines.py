"""Lines out of a stream of bytes, with a bound on their length."""

from __future__ import annotations


class LineTooLong(ValueError):
    """The peer has sent more bytes without a newline than a line may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than {limit} bytes")


class LineDecoder:
    """Collects bytes and gives back whole lines; never holds more than one line's bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial: list[bytes] = []
        self._partial_size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without newline or carriage return; no blank ones.

        Raises LineTooLong; the decoder is of no further use then.
        """
        head, newline, rest = data.partition(b"\n")
        self._partial_size += len(head)
        if self._partial_size > self._limit:
            raise LineTooLong(self._limit)
        self._partial.append(head)
        if not newline:
            return []
        *lines, last = rest.split(b"\n")
        lines.insert(0, b"".join(self._partial))
        if max(map(len, lines)) > self._limit or len(last) > self._limit:
            raise LineTooLong(self._limit)
        self._partial = [last]
        self._partial_size = len(last)
        return [line for line in (line.rstrip(b"\r") for line in lines) if line.strip()]
