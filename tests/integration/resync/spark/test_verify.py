import pytest

from federation.checks import Outcome, check_pdus
from federation.room_versions import ROOM_VERSIONS
from resync.spark.verify import SparkPduChecker
from tests.integration.resync.spark.pdus import KEYS, random_texts, room_id_of

pytestmark = pytest.mark.xdist_group("spark")  # They share one session.


@pytest.mark.parametrize("room_version", ["1", "3", "6", "10", "12"])
def test_spark_gives_the_verdicts_of_the_function_it_runs(spark, room_version):
    assert room_version in ROOM_VERSIONS
    room_id = room_id_of(room_version)
    texts = random_texts(room_version, 1_200, seed=int(room_version))
    expected = check_pdus(texts, room_version, room_id, KEYS)
    assert {check.outcome for check in expected} == set(Outcome)

    checks = SparkPduChecker(spark).check(texts, room_version, room_id, KEYS, group="verify test")

    assert checks == expected


def test_nothing_to_check(spark):
    assert SparkPduChecker(spark).check([], "10", room_id_of("10"), KEYS, group="nothing") == []


def test_progress_of_the_tasks_is_told(spark):
    texts = random_texts("10", 4_000, seed=1)
    told = []
    # Many small jobs' worth of checks, so that the job outlives a few looks at its tasks.
    SparkPduChecker(spark).check(
        texts * 4,
        "10",
        room_id_of("10"),
        KEYS,
        group="progress",
        report=lambda done, total: told.append((done, total)),
    )
    assert told
    assert all(0 <= done <= total for done, total in told)
