"""Times that can be compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternately(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, taken in turn so that a busy moment hits all alike.

    :param repeats: how often each is timed, after once to warm up.
    :param actions: what to time.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats + 1):
        for times, action in zip(seconds, actions, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]
