"""TLS: what we ask of the servers that we call, and what we show to those that call us."""

from __future__ import annotations

import ssl
from os import PathLike

from federation.errors import InvalidTlsFile


def client_tls_context(
    *, verify_certificates: bool = True, ca_path: str | PathLike[str] | None = None
) -> ssl.SSLContext:
    """The TLS settings for requests to other servers: TLS 1.2 or newer.

    Args:
        verify_certificates: False accepts any certificate, for tests and closed networks. The
            server name is sent in the handshake (SNI) all the same.
        ca_path: PEM file of the certificate authorities to trust, instead of the system's.

    Raises:
        InvalidTlsFile: `ca_path` cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidTlsFile(f"the CA file {ca_path} cannot be used: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify_certificates:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def server_tls_context(
    certificate_path: str | PathLike[str], private_key_path: str | PathLike[str]
) -> ssl.SSLContext:
    """The TLS settings of a listener: TLS 1.2 or newer.

    Args:
        certificate_path: PEM, the certificate first and the intermediates after it.
        private_key_path: PEM, without a passphrase.

    Raises:
        InvalidTlsFile: a file is missing or unreadable, or they do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate_path, private_key_path):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise InvalidTlsFile(f"the TLS file {path} cannot be read: {error.strerror}") from None
    try:
        # The callback keeps OpenSSL from asking for a passphrase on the terminal.
        context.load_cert_chain(certificate_path, private_key_path, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidTlsFile(
            f"the TLS certificate {certificate_path} and private key {private_key_path} cannot be "
            f"used together: {error}"
        ) from None
    return context
