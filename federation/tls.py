"""TLS: what we ask of the servers that we call, and what we show to those that call us."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from federation.errors import InvalidTlsFile


class PemCertificate(NamedTuple):
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    private_key: bytes


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


def self_signed_certificate(
    names: Sequence[str], *, days: int = 365, now: datetime.datetime | None = None
) -> PemCertificate:
    """A new certificate that vouches for itself, for tests, demos and closed networks.

    It can serve as its own certificate authority (`client_tls_context(ca_path=...)`).

    Args:
        names: DNS names and IP addresses it is valid for.
        days: how long it is valid.
        now: the time to count from, by default the system's.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self-signed")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return PemCertificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
