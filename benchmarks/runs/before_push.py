"""Errors between steps 1 and 2 of DCO: when an experience is trained, before the push.

The authors' code takes its errors there, and never pushes after the last task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metric_definitions import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.models import avalanche_forward
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor
from torch.utils.data import DataLoader

from avalanche_dco.metrics.functional import average_error, bwt_error, fwi_error
from avalanche_dco.metrics.names import MetricName, NameParts
from avalanche_dco.plugins.support.isolation import model_kept, random_state_kept
from avalanche_dco.plugins.support.sampling import as_tensors, collate_of

METRIC = "ErrorBeforePush"


class ErrorsBeforePush(PluginMetric):
    """Emits the errors on the experiences learned so far at the end of the last epoch.

    ``strategy.eval`` cannot be called there; the model is evaluated by itself, and nothing else of
    the run changes.
    """

    def __init__(self, stream: CLScenario):
        super().__init__()
        self.stream = stream
        self._batches: dict[int, list[list[Tensor]]] = {}

    def reset(self) -> None:
        """There is nothing to forget."""

    def result(self) -> None:
        """All values are emitted at once."""

    def after_training_epoch(self, strategy: SupervisedTemplate) -> list[MetricValue] | None:
        if strategy.clock.train_exp_epochs + 1 < strategy.train_epochs:
            return None
        with model_kept(strategy.model, weights=False), random_state_kept(), torch.no_grad():
            strategy.model.eval()
            return [
                MetricValue(
                    self,
                    MetricName(NameParts(METRIC, "eval", "test", None, number)),
                    self._error(strategy, number),
                    strategy.clock.train_iterations,
                )
                for number in range(strategy.experience.current_experience + 1)
            ]

    def _error(self, strategy: SupervisedTemplate, number: int) -> float:
        wrong = total = 0
        for x, y, task_labels in self._batches_of(number, strategy.eval_mb_size):
            outputs = avalanche_forward(strategy.model, x.to(strategy.device), task_labels)
            wrong += int((outputs.argmax(dim=1).cpu() != y.cpu()).sum())
            total += len(y)
        return wrong / total

    def _batches_of(self, number: int, size: int) -> Iterator[list[Tensor]]:
        dataset = self.stream[number].dataset.eval()
        if number not in self._batches:
            tensors = as_tensors(dataset)
            if tensors is None:  # too large, or random
                yield from DataLoader(dataset, size, collate_fn=collate_of(dataset))
                return
            parts = (tensor.split(size) for tensor in tensors)
            self._batches[number] = [list(batch) for batch in zip(*parts, strict=True)]
        yield from self._batches[number]

    def __getstate__(self) -> dict[str, Any]:
        # The data are not part of a checkpoint: who loads one sets the stream again.
        return self.__dict__ | {"stream": None, "_batches": {}}


def errors_before_push(metrics: pd.DataFrame) -> dict[str, float]:
    """Average, FWI and BWT error in % before the push; nothing for methods that do not push."""
    rows = metrics[metrics["metric"] == METRIC]
    if rows.empty:
        return {}
    matrix = rows.pivot_table(index="trained", columns="experience", values="value").to_numpy()
    return {
        "average_before_push": 100 * average_error(matrix),
        "fwi_before_push": 100 * fwi_error(matrix),
        "bwt_before_push": 100 * bwt_error(matrix),
    }
