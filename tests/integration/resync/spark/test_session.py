"""Jobs that are stopped, sessions that are closed, and what cannot be started."""

import os
import threading
import time

import psutil
import pytest
from prometheus_client import CollectorRegistry

from resync.spark.errors import SparkJobCancelled, SparkJobFailed, SparkUnavailable
from resync.spark.metrics import SparkMetrics
from resync.spark.session import WarmSession
from tests.integration.resync.spark.conftest import open_session


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


def test_a_job_that_fails_is_tried_twice(spark):
    attempts = []

    def job(session):
        attempts.append(session)
        return job_of(broken)(session)

    with pytest.raises(SparkJobFailed):
        spark.run("verify", "broken", job)
    assert len(attempts) == 2


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
