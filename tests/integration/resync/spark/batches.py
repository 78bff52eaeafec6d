"""Random batches of state resolution problems, from the histories of the property tests."""

import random

from resync.state import resolve
from resync.state.batch import Problem
from resync.state.conflicts import deltas_from_first
from resync.state.resolve import prepare
from tests.histories import ALL_VERSIONS, random_history


def problem_of(room_version, states, events, rejected):
    """The resolution of whole states, as changes to the first."""
    return Problem(room_version, states[0], deltas_from_first(states), events, rejected)


def applied(problem, changes):
    """The state that changes make of the base."""
    state = {**problem.base, **changes}
    return {key: event_id for key, event_id in state.items() if event_id is not None}


def conflicted_events(problem):
    """How many events the states of a problem disagree on."""
    prepared = prepare(*problem[:4], rejected=problem.rejected)
    return sum(map(len, prepared.conflicts.conflicted.values()))


def random_batch(seed, *, versions=ALL_VERSIONS, conflicts=6, length=60):
    """Problems of all `versions`, and what the in-process engine makes of them.

    Some have events missing or a rejected event too many, as hostile servers bring about.
    """
    rng = random.Random(seed)
    problems, expected = [], []
    for room_version in versions:
        history = random_history(room_version, rng.randrange(10**6), length=length)
        for states in history.conflicts(rng, conflicts):
            events, rejected = dict(history.events), set(history.rejected)
            if rng.random() < 0.25:
                for event_id in rng.sample(list(events), 3):
                    del events[event_id]
            if rng.random() < 0.25:
                rejected.update(rng.sample(list(events), 2))
            problems.append(problem_of(room_version, states, events, rejected))
            expected.append(resolve(room_version, states, events, rejected=rejected))
    return problems, expected
