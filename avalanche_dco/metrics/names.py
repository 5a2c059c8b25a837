"""Names of metrics that know their parts."""

from __future__ import annotations

from typing import NamedTuple

from avalanche.evaluation.metric_utils import (
    default_metric_name_template,
    generic_get_metric_name,
    phase_and_task,
    stream_type,
)
from avalanche.training.templates import SupervisedTemplate


class NameParts(NamedTuple):
    """The parts of ``Name/eval_phase/test_stream/Task000/Exp003``; None for those it lacks."""

    metric: str
    phase: str | None = None
    stream: str | None = None
    task: int | None = None
    experience: int | None = None


class MetricName(str):
    """A full name as Avalanche writes it, for every logger, with its parts as data.

    >>> MetricName(NameParts("BWTError", "eval", "test"))
    'BWTError/eval_phase/test_stream'
    """

    __slots__ = ("parts",)
    parts: NameParts

    def __new__(cls, parts: NameParts) -> MetricName:
        """Compose the name."""
        metric, phase, stream, task, experience = parts
        info = {
            "metric_name": metric,
            "phase_name": phase,
            "stream_name": stream,
            "task_label": task,
            "experience_id": experience,
        }
        name = super().__new__(cls, generic_get_metric_name(default_metric_name_template, info))
        name.parts = parts
        return name

    @classmethod
    def of_experience(cls, metric: str, strategy: SupervisedTemplate) -> MetricName:
        """The name of a value of the strategy's current experience."""
        phase, task = phase_and_task(strategy)
        experience = strategy.experience
        stream = stream_type(experience)
        return cls(NameParts(metric, phase, stream, task, experience.current_experience))

    def __getnewargs__(self) -> tuple[NameParts]:  # type: ignore[override]
        return (self.parts,)
