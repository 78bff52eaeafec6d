"""One real Spark session, on two cores of this machine, for all tests here."""

import os

import pytest
from prometheus_client import CollectorRegistry

from resync.spark.metrics import SparkMetrics
from resync.spark.session import WarmSession

# Sessions of tests are short: what a JVM spends on compiling does not pay off.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def open_session(master="local[2]", **settings):
    registry = CollectorRegistry()
    session = WarmSession(
        master,
        {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": JAVA_OPTIONS, **settings},
        environment=os.environ,
        metrics=SparkMetrics(registry),
    )
    session.registry = registry
    session.start()
    assert session.wait_until_started(), session.unavailable
    return session


@pytest.fixture(scope="session")
def spark():
    session = open_session()
    yield session
    session.close()
