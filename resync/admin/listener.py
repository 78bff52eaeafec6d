"""Puts the admin application on a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from resync.errors import ResyncError

# Requests that wait for a room would otherwise hold a shutdown up for their whole time.
_SHUTDOWN_SECONDS = 1.0


class AdminListenerFailed(ResyncError):
    """The admin listener cannot have the address that the config gives it."""


@asynccontextmanager
async def listen(app: web.Application, bind: str, port: int) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port, which the system chooses if `port` is 0.

    Raises `AdminListenerFailed`.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, bind, port)
        try:
            await site.start()
        except OSError as error:
            raise AdminListenerFailed(
                f"the admin listener cannot use {bind} port {port}: {error.strerror or error}; "
                "is another worker running with this config? Else change admin.bind or admin.port"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
