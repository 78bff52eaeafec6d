"""Jobs that are stopped, sessions that are closed, and what cannot be started."""

import os
import tempfile
import threading
import time

import psutil
import pytest
from prometheus_client import CollectorRegistry

from resync.spark.errors import SparkJobCancelled, SparkJobFailed, SparkUnavailable
from resync.spark.metrics import SparkMetrics
from resync.spark.session import WarmSession
from tests.integration.resync.spark.conftest import open_session

pytestmark = pytest.mark.slow  # Each starts JVMs of its own.


def sleep(batches):
    time.sleep(600)
    yield from batches


def broken(batches):
    raise ValueError("broken task")
    yield from batches


def job_of(task):
    def job(spark):
        return spark.range(2).mapInArrow(task, "id long").toArrow()

    return job


def test_a_cancelled_job_stops_and_the_session_goes_on(spark):
    failures = []

    def run():
        try:
            spark.run("verify", "sleeping", job_of(sleep))
        except SparkJobCancelled as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not spark._jvm.context.statusTracker().getActiveJobsIds():
        time.sleep(0.05)
    spark.cancel("sleeping")
    thread.join(60)
    assert not thread.is_alive()
    assert len(failures) == 1
    assert spark.run("verify", "next", lambda session: session.range(3).count()) == 3


def test_a_job_that_was_cancelled_before_it_began_does_not_begin(spark):
    begun = []
    spark.cancel("early")
    with pytest.raises(SparkJobCancelled):
        spark.run("verify", "early", begun.append)
    assert begun == []


def test_a_job_that_is_cancelled_while_it_is_prepared_stops(spark):
    def job(session):
        # Nothing of it has reached Spark so far.
        spark.cancel("prepared")
        return job_of(sleep)(session)

    started = time.monotonic()
    with pytest.raises(SparkJobCancelled):
        spark.run("verify", "prepared", job)
    assert time.monotonic() - started < 300  # The task takes twice as long.


def test_a_job_that_fails_is_tried_twice(spark):
    attempts = []

    def job(session):
        attempts.append(session)
        return job_of(broken)(session)

    with pytest.raises(SparkJobFailed):
        spark.run("verify", "broken", job)
    assert len(attempts) == 2


@pytest.mark.parametrize("seconds", [0.2, 4])
def test_a_session_that_is_closed_while_it_starts_leaves_nothing(
    no_session, tmp_path, monkeypatch, seconds
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = WarmSession(
        "local[1]", {}, environment=os.environ, metrics=SparkMetrics(CollectorRegistry())
    )
    before = set(psutil.Process().children(recursive=True))
    session.start()
    time.sleep(seconds)
    assert session.is_starting
    session.close()
    assert set(psutil.Process().children(recursive=True)) - before == set()
    assert list(tmp_path.iterdir()) == []
    assert not session.is_ready


def test_a_closed_session_leaves_no_process_and_takes_no_job(no_session):
    session = open_session("local[1]")
    jvm = psutil.Process(session.jvm_pid)
    session.close()
    assert not jvm.is_running()
    with pytest.raises(SparkUnavailable):
        session.run("verify", "late", lambda spark: spark.range(1).count())


def test_a_master_that_does_not_exist_is_said_and_not_raised(no_session):
    session = WarmSession(
        "nonsense", {}, environment=os.environ, metrics=SparkMetrics(CollectorRegistry())
    )
    session.start()
    assert not session.wait_until_started()
    assert "Master must" in session.unavailable
    session.close()
