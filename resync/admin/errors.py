"""Errors of the admin API in the shape that every Matrix API has."""

from __future__ import annotations

from aiohttp import web


class AdminError(Exception):
    """An answer that is an error: HTTP status, Matrix error code, and a sentence for people."""

    def __init__(self, status: int, errcode: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.errcode = errcode
        self.message = message

    def response(self) -> web.Response:
        """The answer itself."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return web.json_response(
            {"errcode": self.errcode, "error": self.message}, status=self.status, headers=headers
        )


def invalid_parameter(message: str) -> AdminError:
    """400: something in the path, the query or the body is not what it should be."""
    return AdminError(400, "M_INVALID_PARAM", message)


def bad_json(message: str) -> AdminError:
    """400: the body is JSON of the wrong shape."""
    return AdminError(400, "M_BAD_JSON", message)


def unknown_room(room_id: str) -> AdminError:
    """404: this server never joined the room."""
    return AdminError(404, "M_NOT_FOUND", f"{room_id} is not a room that was partially joined here")
