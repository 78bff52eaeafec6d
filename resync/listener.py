"""Puts an application on a socket."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from resync.errors import ListenerFailed

# Requests that wait for a room would otherwise hold a shutdown up for their whole time.
_SHUTDOWN_SECONDS = 1.0


@asynccontextmanager
async def listen(
    app: web.Application,
    bind: str,
    port: int,
    *,
    setting: str,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port, which the system chooses if `port` is 0.

    Args:
        setting: the section of the config that the address comes from, for the error.
        tls: None for plain HTTP.

    Raises:
        ListenerFailed: the address cannot be had.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, bind, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise ListenerFailed(setting, bind, port, error) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
