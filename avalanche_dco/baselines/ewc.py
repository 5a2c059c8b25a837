"""Elastic Weight Consolidation with the Fisher information of single samples."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_dco.baselines.per_sample import Batch, mean_transformed_gradients
from avalanche_dco.baselines.shared import (
    TABLES_BY_EXPERIENCE,
    PerSampleImportances,
    QuadraticPenalty,
    Table,
    as_param_data,
    labelled,
    loaded_batches,
)
from avalanche_dco.plugins.support.kept import Kept


class EWCPlugin(QuadraticPenalty, PerSampleImportances, plugins.EWCPlugin):
    r"""Avalanche's EWC with the exact empirical Fisher information.

    The importances of Avalanche 0.6.0 are squares of *mini-batch mean* gradients. In a batch of
    B samples the gradients cancel, near a minimum down to a B-th of their squares. So the
    importances depend on ``train_mb_size``, and published values of :math:`\lambda` do not apply.
    Here they are as the paper (Kirkpatrick et al., 2017) defines them, the average of each sample's
    squared gradient, for any size of the batches. The modules' train or eval modes are left
    as they were.

    >>> from avalanche_dco.baselines import EWCPlugin
    >>> plugin = EWCPlugin(ewc_lambda=100)
    """

    _KEEPS = (
        Kept("importances", TABLES_BY_EXPERIENCE, like="weights"),
        Kept("weights", TABLES_BY_EXPERIENCE, "saved_params"),
    )
    _SETTINGS = ("ewc_lambda", "mode", "decay_factor", "keep_importance_data")
    _BINDING = ("mode",)
    _FOR_ALL_PARAMETERS = True

    def __init__(
        self,
        ewc_lambda: float,
        mode: str = "separate",
        decay_factor: float | None = None,
        keep_importance_data: bool = False,
        *,
        half: bool = False,
        fisher_mb_size: int = 256,
    ):
        r"""Create the plugin.

        :param ewc_lambda: strength of the penalty.
        :param mode: `separate` or `online`, as in Avalanche.
        :param decay_factor: decay of the importances in mode `online`, as in Avalanche.
        :param keep_importance_data: as in Avalanche.
        :param half: True for the paper's penalty :math:`\frac\lambda2 F (\theta-\theta^*)^2`;
            False for Avalanche's :math:`\lambda F (\theta-\theta^*)^2`.
        :param fisher_mb_size: samples at a time when the importances are computed; it changes
            speed and memory, not the result.
        """
        strength = ewc_lambda / 2 if half else ewc_lambda
        super().__init__(strength, mode, decay_factor, keep_importance_data)
        self.fisher_mb_size = fisher_mb_size

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the penalty: in mode `separate` the sum over all earlier experiences."""
        if strategy.clock.train_exp_counter > 0:
            self._add_penalty(strategy, self.ewc_lambda)

    def _tables(self, strategy: SupervisedTemplate) -> Iterator[tuple[Table, Table]]:
        now = strategy.clock.train_exp_counter
        for number in range(now) if self.mode == "separate" else [now - 1]:
            if number in self.saved_params:
                yield self.importances[number], self.saved_params[number]

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the importances and keep the weights."""
        super().after_training_exp(strategy, **kwargs)
        self._finished(strategy)

    def compute_importances(
        self,
        model: nn.Module,
        criterion: Any,
        optimizer: Optimizer,
        dataset: Any,
        device: str | torch.device,
        batch_size: int,
        num_workers: int = 0,
    ) -> dict[str, ParamData]:
        """The average squared gradient of the samples; called by Avalanche's EWC."""
        batches = loaded_batches(dataset, self.fisher_mb_size, device, num_workers)
        return as_param_data(self._importances(model, batches, criterion))

    def _importances(
        self, model: nn.Module, batches: Iterable[Batch], criterion: Any
    ) -> dict[str, Tensor]:
        return mean_transformed_gradients(
            model, _with_loss(batches, criterion), criterion, torch.square
        )


def _with_loss(batches: Iterable[Batch], criterion: Any) -> Iterator[Batch]:
    """Leave out the samples that the criterion ignores: alone, they have no loss."""
    for x, y, task_labels in batches:
        chosen = labelled(y, criterion)
        if chosen.any():
            yield x[chosen], y[chosen], task_labels[chosen.to(task_labels.device)]
