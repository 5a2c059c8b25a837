"""Metric values and progress bars, by the means that Avalanche has for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from avalanche.evaluation.metric_results import MetricValue
from avalanche.evaluation.metric_utils import get_metric_name
from avalanche.logging import InteractiveLogger
from tqdm import tqdm

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


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
