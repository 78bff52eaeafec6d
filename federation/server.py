"""What other servers ask of us: our keys, and what software we are.

Source: server-server API, "Publishing Keys", "Server implementation", "Unsupported endpoints".
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web

from federation.signing import SigningKey, encode_base64, sign_json
from federation.tls import server_tls_context as tls_context

__all__ = ["OldVerifyKey", "build_app", "key_response", "matrix_errors", "tls_context"]

VALIDITY_MS: Final = 24 * 3600 * 1000
"""How long others may use our published keys before they ask again."""
_MAX_REQUEST_BYTES: Final = 10 * 1024 * 1024
_SOFTWARE: Final = MappingProxyType({"name": "faster-joins-resync", "version": "0.1.0"})


class OldVerifyKey(NamedTuple):
    """A key that we no longer sign with.

    Attributes:
        verify_key: 32 bytes, Ed25519.
        expired_ts: when we stopped, ms since the epoch.
    """

    verify_key: bytes
    expired_ts: int


_NO_OLD_KEYS: Final[Mapping[str, OldVerifyKey]] = MappingProxyType({})


def build_app(
    server_name: str,
    signing_keys: Sequence[SigningKey],
    old_verify_keys: Mapping[str, OldVerifyKey] = _NO_OLD_KEYS,
    *,
    routes: Iterable[web.AbstractRouteDef] = (),
    software: Mapping[str, str] = _SOFTWARE,
    clock: Callable[[], float] = time.time,
) -> web.Application:
    """The application that answers other servers; it is run with TLS or behind a proxy.

    Args:
        server_name: our name.
        signing_keys: the keys we sign with, at least one.
        old_verify_keys: by key id.
        routes: further endpoints. What they do not handle is answered as unrecognized.
        software: `name` and `version` to give out.
        clock: seconds since the epoch.
    """
    if not signing_keys:
        raise ValueError("a homeserver needs at least one signing key")

    async def keys(_: web.Request) -> web.Response:
        return web.json_response(
            key_response(server_name, signing_keys, old_verify_keys, int(clock() * 1000))
        )

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"server": dict(software)})

    app = web.Application(middlewares=[matrix_errors], client_max_size=_MAX_REQUEST_BYTES)
    app.add_routes(
        [
            web.get("/_matrix/key/v2/server", keys),
            web.get("/_matrix/key/v2/server/", keys),
            # Deprecated: whatever key is named, the answer lists all of them.
            web.get("/_matrix/key/v2/server/{key_id}", keys),
            web.get("/_matrix/federation/v1/version", version),
            *routes,
        ]
    )
    return app


def key_response(
    server_name: str,
    signing_keys: Sequence[SigningKey],
    old_verify_keys: Mapping[str, OldVerifyKey],
    now_ms: int,
) -> dict[str, Any]:
    """Our published keys, signed with each key that we sign with."""
    response: dict[str, Any] = {
        "server_name": server_name,
        "verify_keys": {key.key_id: {"key": key.verify_key_base64} for key in signing_keys},
        "old_verify_keys": {
            key_id: {"key": encode_base64(old.verify_key), "expired_ts": old.expired_ts}
            for key_id, old in old_verify_keys.items()
        },
        "valid_until_ts": now_ms + VALIDITY_MS,
    }
    for key in signing_keys:
        response = sign_json(response, server_name, key)
    return response


@web.middleware
async def matrix_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Gives every HTTP error the shape of a Matrix error, defects of ours among them."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        errcode = _ERRCODES.get(error.status, "M_UNKNOWN")
        response = web.json_response(
            {"errcode": errcode, "error": _MESSAGES.get(error.status, error.reason)},
            status=error.status,
        )
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception:
        request.app.logger.exception("a request of another server failed here")
        return web.json_response(
            {"errcode": "M_UNKNOWN", "error": "This failed here; try again later"}, status=500
        )


_ERRCODES: Final = {404: "M_UNRECOGNIZED", 405: "M_UNRECOGNIZED", 413: "M_TOO_LARGE"}
_MESSAGES: Final = {
    404: "This server has no such endpoint",
    405: "This endpoint does not support that method",
}
