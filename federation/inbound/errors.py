"""Refusals of inbound requests, in the shape of the Matrix APIs."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

UNABLE_DUE_TO_PARTIAL_STATE: Final = "ORG.MATRIX.MSC3895_UNABLE_DUE_TO_PARTIAL_STATE"


class RequestRefused(Exception):
    """A request that is answered with an error.

    Attributes:
        status: the HTTP status.
        errcode: the Matrix error code.
        more: further fields of the body.
    """

    def __init__(self, status: int, errcode: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.errcode = errcode
        self.more = more

    def response(self) -> web.Response:
        """The answer to give."""
        body = {"errcode": self.errcode, "error": str(self), **self.more}
        return web.json_response(body, status=self.status)


def unable_due_to_partial_state() -> RequestRefused:
    """The answer to what cannot be answered without the full state of a room (MSC3895)."""
    return RequestRefused(
        404,
        UNABLE_DUE_TO_PARTIAL_STATE,
        "This server has only part of the room's state so far; ask another one, or later",
    )
