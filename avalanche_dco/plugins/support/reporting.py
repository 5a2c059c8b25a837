"""Metric values, progress bars, and how long a wait will be."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import Any

from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import get_metric_name
from avalanche.logging import InteractiveLogger
from avalanche.training.templates import SupervisedTemplate
from tqdm import tqdm


def publish(strategy: SupervisedTemplate, metric: str, value: float, x_plot: int) -> None:
    """Hand a value of the current experience to the evaluator, and so to all its loggers."""
    experience = strategy.experience
    # An experience hides its number from training code, but not from logging.
    strategy.experience = experience.logging()
    try:
        name = get_metric_name(metric, strategy, add_experience=True, add_task=True)
    finally:
        strategy.experience = experience
    strategy.evaluator.publish_metric_value(MetricValue(metric, name, value, x_plot))


def experience_number(strategy: SupervisedTemplate) -> int:
    """The number of the current experience in its stream."""
    return strategy.experience.logging().current_experience


def progress_bar(
    strategy: SupervisedTemplate, iterable: Iterable[Any] | None, total: int, description: str
) -> Any:
    """A tqdm bar, silent unless the user has asked for an interactive logger."""
    interactive = any(
        isinstance(logger, InteractiveLogger) for logger in strategy.evaluator.loggers
    )
    return tqdm(iterable, total=total, desc=description, leave=False, disable=not interactive)


_LONG = 60.0
"""Seconds of steps 2 and 3 above which a warning says how many there will be."""
_PACE_OVER = 0.5
"""Seconds over which the pace is measured, at least."""


class Wait:
    """Says, once, how long steps 2 and 3 will take, if that is long; loggers are not needed.

    Call :meth:`begin` for each experience, :meth:`expect` when a loop begins, and :meth:`advance`
    after each of its rounds.
    """

    warned = False
    """Whether the warning has been given."""

    def begin(self) -> None:
        """An experience has been trained on; steps 2 and 3 follow."""
        self._began = time.perf_counter()

    def expect(self, rounds: int, remedy: str) -> None:
        """A loop begins."""
        self._left, self._remedy, self._first = rounds, remedy, True

    def advance(self, strategy: SupervisedTemplate) -> None:
        """A round of the loop is over; warns if there will be many like it."""
        now = time.perf_counter()
        self._left -= 1
        if self._first:  # has warmed up
            self._first, self._measured_from, self._measured = False, now, 0
            return
        self._measured += 1
        if self.warned or now - self._measured_from < _PACE_OVER:
            return
        pace = (now - self._measured_from) / self._measured
        seconds = now - self._began + self._left * pace
        if seconds > _LONG:
            self.warned = True
            warnings.warn(
                f"Experience {experience_number(strategy)}: steps 2 and 3 of DCO take about "
                f"{seconds:.0f} s after this experience, and as long after every similar one. "
                f"To shorten this, {self._remedy}.",
                stacklevel=2,
            )
