"""How much room the network has left, and what the plugin keeps, as Avalanche metrics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from avalanche.evaluation.metric_definitions import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.core.factors import Weights
from avalanche_dco.core.span import Shares, mean_share
from avalanche_dco.errors import SettingError
from avalanche_dco.metrics.names import MetricName
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.dco_kron import DCOKronPlugin
from avalanche_dco.plugins.support.gradients import criterion_gradients, trainable
from avalanche_dco.plugins.support.isolation import isolated, random_state_kept
from avalanche_dco.plugins.support.sampling import BatchStream
from avalanche_dco.plugins.support.settings import check_number


class _DirectionMetric(PluginMetric):
    """Knows the plugin whose directions are measured."""

    def __str__(self) -> str:
        return type(self).__name__

    def before_training(self, strategy: SupervisedTemplate) -> None:
        _plugin_of(strategy, self)

    @staticmethod
    def _value(strategy: SupervisedTemplate, metric: str, value: float) -> MetricValue:
        name = MetricName.of_experience(metric, strategy)
        return MetricValue(metric, name, value, strategy.clock.train_iterations)


class Capacity(_DirectionMetric):
    """Share of the gradients' energy in the span of earlier experiences' directions.

    With DCO-KRON, which has all directions, each is weighted by how much it is damped.

    ``CapacityStart`` is measured before the first training step of an experience,
    ``CapacityEnd`` after its training, at its final weights x*. Both use the
    directions of earlier experiences, never the experience's own, and gradients of
    the criterion alone, in the mode (dropout, batch normalisation) in which the model is trained.
    Measuring changes nothing: neither the strategy nor any random generator.

    >>> from avalanche_dco.metrics import Capacity
    >>> Capacity(end=False, batches=4).result()  # nothing is measured yet
    {}

    :param start: emit ``CapacityStart``.
    :param end: emit ``CapacityEnd``.
    :param batches: mini-batches of the experience, of the size used for training, over which the
        share is averaged. They are drawn at random, no sample twice; there are fewer if the
        experience has fewer.
    """

    def __init__(self, *, start: bool = True, end: bool = True, batches: int = 16) -> None:
        super().__init__()
        check_number("batches", batches, low=1, whole=True, meaning="the batches to average")
        self.start = start
        self.end = end
        self.batches = batches
        self.reset()

    def reset(self) -> None:
        """Forget the latest shares."""
        self._shares: dict[str, float] = {}
        self._span: Shares | None = None  # for one experience

    def result(self) -> dict[str, float]:
        """The shares of the latest experience, by the metric's name."""
        return dict(self._shares)

    def before_training_exp(self, strategy: SupervisedTemplate) -> MetricValue | None:
        self.reset()
        self._span = _plugin_of(strategy, self).prohibited()
        value = self._measured(strategy, "CapacityStart") if self.start else None
        if not self.end:
            self._span = None
        return value

    def after_training_exp(self, strategy: SupervisedTemplate) -> MetricValue | None:
        value = self._measured(strategy, "CapacityEnd") if self.end else None
        self._span = None
        return value

    def _measured(self, strategy: SupervisedTemplate, metric: str) -> MetricValue:
        # The number that isolated() draws must not show outside either.
        with random_state_kept(), isolated(strategy):
            share = mean_share(self._span, _gradients(strategy, self.batches))
        self._shares[metric] = share
        return self._value(strategy, metric, share)


class DirectionMemory(_DirectionMetric):
    """Bytes that the plugin keeps between experiences, after each of them.

    >>> from avalanche_dco.metrics import DirectionMemory
    >>> print(DirectionMemory().result())  # no experience is learned yet
    None
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget the latest number."""
        self._bytes: int | None = None

    def result(self) -> int | None:
        """The bytes kept after the latest experience; None before the first."""
        return self._bytes

    def after_training_exp(self, strategy: SupervisedTemplate) -> MetricValue:
        self._bytes = _plugin_of(strategy, self).memory_bytes
        return self._value(strategy, str(self), self._bytes)


def capacity_metrics(
    *, start: bool = True, end: bool = True, memory: bool = True, batches: int = 16
) -> list[PluginMetric]:
    """The capacity meter for an evaluator: ``EvaluationPlugin(capacity_metrics(), loggers=...)``.

    The strategy must have a plugin whose directions can be measured: DCO's, DCO-COMP's or
    DCO-KRON's.

    >>> from avalanche.training.plugins import EvaluationPlugin
    >>> from avalanche_dco.logging import PandasLogger
    >>> from avalanche_dco.metrics import capacity_metrics
    >>> evaluator = EvaluationPlugin(capacity_metrics(), loggers=[PandasLogger()])
    >>> print(*capacity_metrics())
    Capacity DirectionMemory

    :param start: emit the gradients' share in the prohibited directions when training starts.
    :param end: emit it when training has ended.
    :param memory: emit the bytes that the plugin keeps.
    :param batches: mini-batches over which the share is averaged; see :class:`Capacity`.
    """
    metrics: list[PluginMetric] = []
    if start or end:
        metrics.append(Capacity(start=start, end=end, batches=batches))
    if memory:
        metrics.append(DirectionMemory())
    return metrics


def _plugin_of(
    strategy: SupervisedTemplate, metric: PluginMetric
) -> DirectionConstrainedPlugin | DCOKronPlugin:
    kinds = (DirectionConstrainedPlugin, DCOKronPlugin)
    found = [p for p in strategy.plugins if isinstance(p, kinds)]
    if not found:
        raise SettingError(
            f"The metric {metric} measures prohibited directions, but the strategy has no plugin "
            "that collects any. Give it one, plugins=[DCOKronPlugin()] or plugins=[DCOPlugin()], "
            "or leave capacity_metrics() out of its evaluator."
        )
    return found[0]


def _gradients(strategy: SupervisedTemplate, batches: int) -> Iterator[Weights]:
    """Gradients of the criterion on random mini-batches of the experience, no sample twice."""
    dataset = strategy.experience.dataset
    size = min(strategy.train_mb_size, len(dataset))
    count = min(batches, len(dataset) // size)
    # Only these samples are fetched: a stream over the whole data set would read all of it.
    chosen = torch.randperm(len(dataset), device="cpu")[: count * size]
    stream = BatchStream(dataset.subset(chosen.tolist()), size)
    parameters = trainable(strategy.model)
    for batch in itertools.islice(stream, count):
        gradients = zip(parameters, criterion_gradients(strategy, batch, parameters), strict=True)
        yield {name: part for name, part in gradients if part is not None}
