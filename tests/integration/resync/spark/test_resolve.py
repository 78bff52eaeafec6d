import pytest

from resync.spark.resolve import SparkResolver
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
    large, of_large = random_batch(5, versions=["11"], conflicts=1, length=400)
    small, of_small = random_batch(6, conflicts=3, length=30)
    problems, expected = (
        [*small[:10], *large, *small[10:]],
        [
            *of_small[:10],
            *of_large,
            *of_small[10:],
        ],
    )
    sizes = [conflicted_events(problem) for problem in problems]
    largest = conflicted_events(large[0])
    assert sorted(sizes)[-2] < largest

    resolved = SparkResolver(spark, large_room=largest).resolve_batch(problems, group="skew")

    for problem, changes, state in zip(problems, resolved, expected, strict=True):
        assert applied(problem, changes) == state, problem.room_version


def test_states_that_agree_need_no_job(spark):
    problems, expected = random_batch(1, versions=["10"], conflicts=1)
    agreeing = problems[0]._replace(deltas=[{}, {}])

    (changes,) = SparkResolver(spark).resolve_batch([agreeing], group="agree")

    assert changes == {}
    assert expected


def test_no_problems(spark):
    assert SparkResolver(spark).resolve_batch([], group="none") == []
