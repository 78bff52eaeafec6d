"""HTTPS requests to one endpoint: an address that discovery has found and approved."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import aiohttp
from yarl import URL

from federation.errors import InvalidResponse, TransportError

USER_AGENT: Final = "faster-joins-resync"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Endpoint(NamedTuple):
    """Where to send a request for a server.

    Attributes:
        address: IP address.
        port: TCP port.
        host_header: value of the `Host` header.
        tls_server_name: DNS name or IP address that the certificate must be valid for. A DNS
            name is also sent in the handshake (SNI).
    """

    address: str
    port: int
    host_header: str
    tls_server_name: str


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a silent server is waited for, in seconds. Nothing limits the whole answer.

    Attributes:
        connect: for the TCP connection and the TLS handshake.
        first_byte: from then on to the first byte of the body.
        idle: between two pieces of the body.
        rate_window, minimum_rate: in each `rate_window` seconds spent waiting for a body, at
            least `minimum_rate` bytes per second must come, on average. This ends answers that
            trickle in byte by byte to keep us busy.
    """

    connect: float = 10.0
    first_byte: float = 60.0
    idle: float = 60.0
    rate_window: float = 60.0
    minimum_rate: int = 1024


class BrokenConnection(TransportError):
    """A connection that failed, at once or before the answer began. Trying again may help."""


class CannotConnect(BrokenConnection):
    """No connection was made: the server cannot have seen the request."""


class Response:
    """An answer whose body has yet to be read.

    Attributes:
        status: HTTP status.
        headers: as received.
    """

    def __init__(
        self,
        destination: str,
        response: aiohttp.ClientResponse,
        first_piece: bytes,
        timeouts: Timeouts,
    ) -> None:
        self._destination = destination
        self._response = response
        self._first_piece = first_piece
        self._timeouts = timeouts
        self.status = response.status
        self.headers = response.headers

    async def pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The body as it arrives.

        Raises:
            InvalidResponse: it is larger than `max_bytes`, or compressed though we asked for
                it plain.
            TransportError: it stops in the middle, or comes too slowly.
        """
        self._check_headers(max_bytes)
        clock = asyncio.get_running_loop().time
        received = window_bytes = 0
        waited = 0.0
        piece = self._first_piece
        while piece:
            received += len(piece)
            window_bytes += len(piece)
            if received > max_bytes:
                raise self._too_large(max_bytes)
            yield piece
            if waited >= self._timeouts.rate_window:
                self._check_rate(window_bytes, received)
                waited, window_bytes = 0.0, 0
            started = clock()
            piece = await self._next_piece(received)
            waited += clock() - started

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises as `pieces`."""
        body = bytearray()
        async for piece in self.pieces(max_bytes):
            body += piece
        return bytes(body)

    def _check_headers(self, max_bytes: int) -> None:
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            raise InvalidResponse(
                self._destination, f"the body is compressed ({encoding[:40]}), which we did not ask"
            )
        length = self._response.content_length
        if length is not None and length > max_bytes:
            raise self._too_large(max_bytes)

    def _too_large(self, max_bytes: int) -> InvalidResponse:
        return InvalidResponse(self._destination, f"the body is larger than {max_bytes} bytes")

    def _check_rate(self, window_bytes: int, received: int) -> None:
        timeouts = self._timeouts
        if window_bytes < timeouts.minimum_rate * timeouts.rate_window:
            raise TransportError(
                self._destination,
                f"the answer trickles in: {window_bytes} bytes in {timeouts.rate_window:g} s, "
                f"{received} bytes in all",
            )

    async def _next_piece(self, received: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeouts.idle):
                return await self._response.content.readany()
        except TimeoutError:
            raise TransportError(
                self._destination,
                f"silent for {self._timeouts.idle:g} s in the middle of its answer, "
                f"after {received} bytes",
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError(
                self._destination,
                f"the answer was cut off after {received} bytes: {_explain(error)}",
            ) from None


class HttpsConnections:
    """Connections to other servers, kept open for a while after use.

    To be made, used and closed within one running event loop.

    Args:
        tls: see `federation.tls.client_tls_context`.
        keep_alive: how long an idle connection is kept, in seconds.
    """

    def __init__(self, tls: ssl.SSLContext, *, keep_alive: float = 30.0) -> None:
        self._tls = tls
        self._keep_alive = keep_alive
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self,
        destination: str,
        endpoint: Endpoint,
        method: str,
        target: str,
        *,
        timeouts: Timeouts,
        headers: Mapping[str, str] = _NO_HEADERS,
        body: bytes | None = None,
    ) -> AsyncIterator[Response]:
        """One request; redirects are not followed, whatever the status the answer is given.

        Args:
            destination: the server's name, for the errors.
            target: path and query, exactly as they are to be sent.

        Raises:
            CannotConnect: refused, unreachable, no TLS: nothing was sent.
            BrokenConnection: the connection broke before the answer began.
            InvalidResponse: the answer is not HTTP.
            TransportError: no answer in time, a certificate that is not valid.
        """
        address = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        url = URL(f"https://{address}:{endpoint.port}{target}", encoded=True)
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                async with asyncio.timeout(timeouts.connect + timeouts.first_byte):
                    response = await self._open_session().request(
                        method,
                        url,
                        headers={**headers, "Host": endpoint.host_header},
                        data=body,
                        server_hostname=endpoint.tls_server_name,
                        allow_redirects=False,
                        timeout=aiohttp.ClientTimeout(
                            total=None, sock_connect=timeouts.connect, sock_read=None
                        ),
                    )
                    first_piece = await response.content.readany()
            except _FailedError as failed:
                raise _translate(destination, endpoint, timeouts, failed.error) from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _translate(destination, endpoint, timeouts, error) from None
            yield Response(destination, response, first_piece, timeouts)
        finally:
            if response is not None:
                # Closes the connection unless the body was read to its end.
                response.release()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Callers bound what they ask at once; a second bound would only show as time-outs.
                connector=aiohttp.TCPConnector(
                    ssl=self._tls, limit=0, keepalive_timeout=self._keep_alive, use_dns_cache=False
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
                # A small compressed body can be a huge plain one; none was asked for.
                auto_decompress=False,
                trust_env=False,
                middlewares=(_once,),
            )
        return self._session


class _FailedError(Exception):
    """Carries an error past aiohttp, which would make the request again by itself."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Makes each request once: what may be repeated, and when, is for the caller to decide."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _FailedError(error) from error


def _translate(
    destination: str, endpoint: Endpoint, timeouts: Timeouts, error: Exception
) -> TransportError:
    where = f"{endpoint.address} port {endpoint.port}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return TransportError(
            destination,
            f"the TLS certificate at {where} is not valid for {endpoint.tls_server_name}: "
            f"{_explain(error.certificate_error)}",
        )
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return TransportError(
            destination, f"the TLS handshake with {where} failed: {_explain(error.os_error)}"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return CannotConnect(destination, f"cannot connect to {where}: {_explain(error.os_error)}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return CannotConnect(destination, f"no connection to {where} in {timeouts.connect:g} s")
    if isinstance(error, TimeoutError):
        return TransportError(
            destination, f"no answer from {where} in {timeouts.first_byte:g} s after connecting"
        )
    if isinstance(error, aiohttp.ClientResponseError | ValueError):
        return InvalidResponse(destination, f"{where} did not answer in HTTP: {_explain(error)}")
    return BrokenConnection(
        destination, f"{where} closed the connection before it answered: {_explain(error)}"
    )


def _explain(error: BaseException) -> str:
    text = str(getattr(error, "message", "")) or getattr(error, "strerror", None) or str(error)
    return (str(text).strip() or type(error).__name__).splitlines()[0][:300]
