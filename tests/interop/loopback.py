"""What servers on loopback need: ports, certificates, keys, databases, and a client."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from signedjson.key import generate_signing_key, write_signing_keys

REQUEST_TIMEOUT = 60.0


class ApiError(Exception):
    """A server answered a request with an error."""

    def __init__(self, method: str, path: str, status: int, body: Any) -> None:
        super().__init__(f"{method} {path}: {status} {body}")
        self.status = status
        self.errcode = body.get("errcode", "") if isinstance(body, dict) else ""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for `localhost` and its key; returns the two paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "tls.crt", directory / "tls.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_path, key_path


def write_signing_key(path: Path) -> Any:
    """A new signing key, written to `path` in the signedjson format; returns the key."""
    key = generate_signing_key("a_" + os.urandom(3).hex())
    with path.open("w") as stream:
        write_signing_keys(stream, [key])
    return key


@contextlib.contextmanager
def postgresql_database(server_url: str, prefix: str) -> Iterator[str]:
    """A database of its own with the C locale, dropped at the end; yields its url."""
    name = f"{prefix}_{os.getpid()}_{os.urandom(4).hex()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE \"{name}\" ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path="/" + name))
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class HttpsConnection:
    """Requests with JSON bodies over one kept-alive TLS connection, certificate not verified."""

    def __init__(self, host: str, port: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(
            host, port, timeout=REQUEST_TIMEOUT, context=context
        )

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The parsed answer of a request that succeeds.

        Raises:
            ApiError: the answer's status is not 200.
            OSError: no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, dict(headers or {}))
            response = self._connection.getresponse()
        except http.client.RemoteDisconnected:
            # The server closed the kept-alive connection between two requests.
            self._connection.close()
            self._connection.request(method, path, data, dict(headers or {}))
            response = self._connection.getresponse()
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise
        text = response.read()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.decode(errors="replace")
        if response.status != 200:
            raise ApiError(method, path, response.status, answer)
        return answer

    def close(self) -> None:
        self._connection.close()
