"""Our own endpoints, over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from federation.errors import InvalidTlsFile
from federation.key_responses import check_key_response
from federation.server import VALIDITY_MS, OldVerifyKey, build_app, tls_context
from federation.signing import generate_signing_key
from federation.tls import client_tls_context, self_signed_certificate
from tests.integration.federation.loopback import Certificates, https_server

US = "us.test"
KEYS = [generate_signing_key(), generate_signing_key()]
OLD = {"ed25519:old": OldVerifyKey(generate_signing_key().verify_key, 1234)}
NOW_MS = 1_700_000_000_000


class Caller:
    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base

    async def __call__(self, method: str, path: str) -> tuple[int, Any, Any]:
        async with self._session.request(method, self._base + path) as response:
            return response.status, await response.json(), response.headers


@pytest.fixture
async def call(certificates: Certificates) -> AsyncIterator[Caller]:
    tls, trusted = certificates.make("localhost")

    async def greet(request: web.Request) -> web.Response:
        if request.method == "POST":
            await request.read()
        return web.json_response({"hello": True})

    app = build_app(
        US,
        KEYS,
        OLD,
        routes=[web.get("/_matrix/hello", greet), web.post("/_matrix/hello", greet)],
        software={"name": "ours", "version": "7"},
        clock=lambda: NOW_MS / 1000,
    )
    connector = aiohttp.TCPConnector(ssl=client_tls_context(ca_path=trusted))
    async with (
        https_server(app, tls) as port,
        aiohttp.ClientSession(connector=connector) as session,
        asyncio.timeout(20),
    ):
        yield Caller(session, f"https://localhost:{port}")


@pytest.mark.parametrize("suffix", ["", "/", "/ed25519:whatever"])
async def test_our_keys_are_published_and_signed_with_each(call: Caller, suffix: str) -> None:
    status, answer, headers = await call("GET", "/_matrix/key/v2/server" + suffix)
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    assert answer["valid_until_ts"] == NOW_MS + VALIDITY_MS
    assert set(answer["signatures"][US]) == {key.key_id for key in KEYS}
    response = check_key_response(answer, US, NOW_MS)
    published = {key.key_id: key for key in response.keys}
    for key in KEYS:
        assert published[key.key_id].verify_key == key.verify_key
        assert not published[key.key_id].is_old
    assert published["ed25519:old"] == ("ed25519:old", OLD["ed25519:old"].verify_key, 1234, True)


async def test_version(call: Caller) -> None:
    status, answer, _ = await call("GET", "/_matrix/federation/v1/version")
    assert (status, answer) == (200, {"server": {"name": "ours", "version": "7"}})


async def test_further_routes_have_their_place(call: Caller) -> None:
    assert (await call("GET", "/_matrix/hello"))[1] == {"hello": True}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/_matrix/federation/v1/state/!room", 404),
        ("GET", "/_matrix/key/v2/query/us.test", 404),
        ("GET", "/_matrix/key/v2/server/a/b", 404),
        ("POST", "/_matrix/key/v2/server", 405),
        ("PUT", "/_matrix/federation/v1/version", 405),
        ("DELETE", "/_matrix/hello", 405),
    ],
)
async def test_what_we_do_not_have_is_said_in_matrix_errors(
    call: Caller, method: str, path: str, status: int
) -> None:
    found, answer, headers = await call(method, path)
    assert found == status
    assert answer["errcode"] == "M_UNRECOGNIZED"
    assert isinstance(answer["error"], str)
    assert headers["Content-Type"].startswith("application/json")
    assert ("Allow" in headers) == (status == 405)


async def test_a_body_that_is_too_large_is_a_matrix_error(call: Caller) -> None:
    async with call._session.post(
        call._base + "/_matrix/hello", data=b"x" * (11 * 1024 * 1024)
    ) as response:
        assert response.status == 413
        assert (await response.json())["errcode"] == "M_TOO_LARGE"


def test_a_server_without_keys_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one signing key"):
        build_app(US, [])


# -- TLS files


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    one, two = self_signed_certificate(["a.test"]), self_signed_certificate(["a.test"])
    (tmp_path / "one.crt").write_bytes(one.certificate)
    (tmp_path / "one.key").write_bytes(one.private_key)
    (tmp_path / "two.key").write_bytes(two.private_key)
    (tmp_path / "empty").write_bytes(b"")
    assert isinstance(tls_context(tmp_path / "one.crt", tmp_path / "one.key"), ssl.SSLContext)
    with pytest.raises(InvalidTlsFile, match=r"none\.crt cannot be read: No such file"):
        tls_context(tmp_path / "none.crt", tmp_path / "one.key")
    with pytest.raises(InvalidTlsFile, match=r"none\.key cannot be read: No such file"):
        tls_context(tmp_path / "one.crt", tmp_path / "none.key")
    for certificate, key in (("one.crt", "two.key"), ("empty", "one.key"), ("one.crt", "empty")):
        with pytest.raises(InvalidTlsFile, match="cannot be used together"):
            tls_context(tmp_path / certificate, tmp_path / key)
    with pytest.raises(InvalidTlsFile, match="CA file"):
        client_tls_context(ca_path=tmp_path / "none.crt")
