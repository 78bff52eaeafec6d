"""How long a room waits after an attempt that failed. Pure."""

from __future__ import annotations

JITTER = 0.25
"""A wait is up to this much longer or shorter, so that rooms do not come back all at once."""


def wait_seconds(attempts: int, *, minimum: float, maximum: float, random: float) -> float:
    """The wait after the `attempts`-th failed attempt in a row, in seconds.

    It doubles with each attempt from `minimum` to `maximum` and never ends.

    Args:
        attempts: at least 1.
        random: a number in [0, 1) that decides the jitter.
    """
    # Past 60 doublings every maximum is reached; more would overflow the float.
    doubled = min(maximum, minimum * 2.0 ** min(attempts - 1, 60))
    return doubled * (1 + JITTER * (2 * random - 1))
