"""What holds on threads of one JVM holds on executors of their own."""

import pytest

from federation.checks import check_pdus
from resync.spark.resolve import SparkResolver
from resync.spark.verify import SparkPduChecker
from tests.integration.resync.spark.batches import applied, random_batch
from tests.integration.resync.spark.pdus import KEYS, random_texts, room_id_of

pytestmark = pytest.mark.slow


def executors(spark):
    return spark._jvm.context._jsc.sc().getExecutorMemoryStatus().size() - 1


def test_verification_equals_in_process(spark):
    for room_version in ("1", "6", "12"):
        room_id = room_id_of(room_version)
        texts = random_texts(room_version, 1_200, seed=5)
        checks = SparkPduChecker(spark).check(
            texts, room_version, room_id, KEYS, group=f"verify {room_version}"
        )
        assert checks == check_pdus(texts, room_version, room_id, KEYS)
    assert executors(spark) == 2


def test_a_batch_of_rooms_of_all_versions_equals_in_process(spark):
    problems, expected = random_batch(7, conflicts=6)
    resolved = SparkResolver(spark).resolve_batch(problems, group="batch")
    for problem, changes, state in zip(problems, resolved, expected, strict=True):
        assert applied(problem, changes) == state, problem.room_version


def test_rooms_in_parts_equal_in_process(spark):
    problems, expected = random_batch(8, versions=["2", "10", "12"], conflicts=2)
    resolved = SparkResolver(spark, large_room=1).resolve_batch(problems, group="parts")
    for problem, changes, state in zip(problems, resolved, expected, strict=True):
        assert applied(problem, changes) == state, problem.room_version
