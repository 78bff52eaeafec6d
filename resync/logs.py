"""Structured logs on standard error: key=value for people, one JSON object a line for machines.

`room_logging` binds the room and the job to everything logged inside it, in this task and in
those it starts. Text from other servers is escaped, so that it cannot forge a line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO

import structlog

# Libraries that report every request or statement at INFO; their warnings are kept.
_QUIET = ("aiohttp", "alembic", "asyncio", "sqlalchemy", "py4j", "pyspark")


def configure_logging(
    log_format: Literal["console", "json"], level: str, stream: TextIO | None = None
) -> None:
    """Send every log record, ours and those of libraries, to `stream` (standard error)."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _renderer(log_format),
        ],
    )
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _renderer(log_format: Literal["console", "json"]) -> structlog.typing.Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer()
    return _render_line


def _render_line(logger: Any, method: str, fields: structlog.typing.EventDict) -> str:
    """`2024-01-01T00:00:00Z info    message key=value …`, with a traceback on lines of its own."""
    exception = fields.pop("exception", None)
    timestamp = fields.pop("timestamp", "")
    level = fields.pop("level", method)
    event = _escape(str(fields.pop("event", "")))
    pairs = "".join(f" {key}={_quote(str(value))}" for key, value in fields.items())
    line = f"{timestamp} {level:<7} {event}{pairs}"
    return f"{line}\n{exception}" if exception else line


def _escape(text: str) -> str:
    """The text as it is, unless it has characters that could forge a line or drive a terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _quote(text: str) -> str:
    """The text in quotes if a reader could not tell otherwise where it ends."""
    if text.isprintable() and text and not set(text) & set(' "='):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


@contextmanager
def room_logging(room_id: str, job_id: int | str | None = None) -> Iterator[None]:
    """Put the room, and the job if there is one, on everything that is logged inside."""
    bound: dict[str, Any] = {"room_id": room_id}
    if job_id is not None:
        bound["job_id"] = job_id
    with structlog.contextvars.bound_contextvars(**bound):
        yield
