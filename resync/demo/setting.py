"""What the demo's worker is configured with."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import yaml

from federation.signing import generate_signing_key, write_signing_key
from federation.simulator.certificates import write_certificate
from resync.config import Config, load_config


def configure(directory: Path, key_servers: list[str], spark: dict[str, Any]) -> Config:
    """A real configuration file in `directory`, as an operator would write it.

    Args:
        key_servers: names of the servers that are trusted for the keys of others.
        spark: the section `spark`.
    """
    certificate = write_certificate(directory)
    write_signing_key(directory / "signing.key", generate_signing_key())
    federation_port, replication_port, admin_port = _free_ports(3)
    path = directory / "resync.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "server_name": f"127.0.0.1:{federation_port}",
                "instance_name": "demo",
                "federation": {
                    "listen": {
                        "port": federation_port,
                        "tls_certificate_path": str(certificate.certificate),
                        "tls_private_key_path": str(certificate.private_key),
                    },
                    "verify_certificates": False,
                    "ip_range_allowlist": ["127.0.0.0/8"],
                    "trusted_key_servers": key_servers,
                },
                "replication": {"tcp": {"port": replication_port}},
                "admin": {"port": admin_port},
                "spark": spark,
            }
        ),
        encoding="utf-8",
    )
    return load_config(path, {})


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
