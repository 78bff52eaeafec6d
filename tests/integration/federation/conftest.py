"""TLS certificates for the wire's tests."""

from __future__ import annotations

import pytest

from tests.integration.federation.loopback import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
