"""One real Spark session, on two cores of this machine, for all tests here."""

import os

import pytest
from prometheus_client import CollectorRegistry

from resync.spark.metrics import SparkMetrics
from resync.spark.session import WarmSession

# Sessions of tests are short: what a JVM spends on compiling does not pay off.
TEST_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def open_session(master="local[2]", **settings):
    registry = CollectorRegistry()
    session = WarmSession(
        master,
        {**TEST_SETTINGS, **settings},
        environment=os.environ,
        metrics=SparkMetrics(registry),
    )
    session.registry = registry
    session.start()
    assert session.wait_until_started(), session.unavailable
    return session


class SharedSession:
    """A session that tests share; a process can have one at a time."""

    def __init__(self):
        self._session = None

    def get(self):
        if self._session is None:
            self._session = open_session()
        return self._session

    def close(self):
        if self._session is not None:
            self._session.close()
            self._session = None


@pytest.fixture(scope="session")
def shared_session():
    shared = SharedSession()
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_session):
    """A warm session on two cores of this machine."""
    return shared_session.get()


@pytest.fixture
def no_session(shared_session):
    """No session in this process, so that the test can have its own."""
    shared_session.close()
