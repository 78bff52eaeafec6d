"""A self-signed TLS certificate for loopback, in files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from federation.tls import self_signed_certificate, server_tls_context


class CertificateFiles(NamedTuple):
    """Paths of a certificate and its private key, both PEM.

    The certificate is its own authority: a client that trusts it verifies the residents.
    """

    certificate: Path
    private_key: Path

    def server_context(self) -> ssl.SSLContext:
        """The TLS settings of a server that shows this certificate."""
        return server_tls_context(self.certificate, self.private_key)


def write_certificate(directory: Path) -> CertificateFiles:
    """Write a new certificate for `localhost`, 127.0.0.1 and ::1 into `directory`."""
    pem = self_signed_certificate(["localhost", "127.0.0.1", "::1"], days=30)
    files = CertificateFiles(directory / "simulator.crt", directory / "simulator.key")
    files.certificate.write_bytes(pem.certificate)
    files.private_key.touch(mode=0o600)
    files.private_key.write_bytes(pem.private_key)
    return files
