import pytest

from resync.spark.resolve import SparkResolver
from resync.state import resolve_deltas
from tests.benchmarks.bench_spark import large_room
from tests.histories import ALL_VERSIONS
from tests.integration.resync.spark.batches import applied, conflicted_events, random_batch

pytestmark = pytest.mark.xdist_group("spark")  # They share one session.


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_of_rooms_of_all_versions_is_resolved_as_in_process(spark, seed):
    problems, expected = random_batch(seed, conflicts=8)
    assert {problem.room_version for problem in problems} == set(ALL_VERSIONS)
    assert any(any(problem.deltas) for problem in problems)

    resolved = SparkResolver(spark).resolve_batch(problems, group=f"batch {seed}")

    for problem, changes, state in zip(problems, resolved, expected, strict=True):
        assert applied(problem, changes) == state, problem.room_version


@pytest.mark.parametrize("room_version", ALL_VERSIONS[1:])
def test_a_room_in_parts_is_resolved_as_in_process(spark, room_version):
    problems, expected = random_batch(int(room_version), versions=[room_version], conflicts=4)
    resolver = SparkResolver(spark, large_room=1)

    resolved = resolver.resolve_batch(problems, group=f"parts {room_version}")

    for problem, changes, state in zip(problems, resolved, expected, strict=True):
        assert applied(problem, changes) == state


def test_one_large_room_among_many_small_ones_is_resolved_as_in_process(spark):
    """In one batch: the large one in parts, the others whole."""
    small, expected = random_batch(6, conflicts=3, length=30)
    large = large_room(2_000, 8)
    in_process = resolve_deltas(*large[:4], rejected=large.rejected)
    assert len(in_process) > 1_000
    assert max(map(conflicted_events, small)) < 4_000 <= conflicted_events(large)

    problems = [*small[:10], large, *small[10:]]
    resolved = SparkResolver(spark, large_room=4_000).resolve_batch(problems, group="skew")

    assert resolved.pop(10) == in_process
    for problem, changes, state in zip(small, resolved, expected, strict=True):
        assert applied(problem, changes) == state, problem.room_version


def test_states_that_agree_need_no_job(spark):
    problems, expected = random_batch(1, versions=["10"], conflicts=1)
    agreeing = problems[0]._replace(deltas=[{}, {}])

    (changes,) = SparkResolver(spark).resolve_batch([agreeing], group="agree")

    assert changes == {}
    assert expected


def test_no_problems(spark):
    assert SparkResolver(spark).resolve_batch([], group="none") == []
