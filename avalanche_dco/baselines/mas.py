"""Memory Aware Synapses with the importances of the function that was learned."""

from collections.abc import Iterable
from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData, copy_params_dict
from torch import Tensor, nn

from avalanche_dco.baselines.per_sample import Batch, mean_transformed_gradients
from avalanche_dco.baselines.shared import (
    TABLE,
    WHOLE_TABLE,
    PerSampleImportances,
    QuadraticPenalty,
    Table,
    as_param_data,
    loaded_batches,
)
from avalanche_dco.errors import ModelError
from avalanche_dco.plugins.support.kept import Kept

_SAMPLES_PER_BATCH = 256


class MASPlugin(QuadraticPenalty, PerSampleImportances, plugins.MASPlugin):
    """Avalanche's MAS with four corrections.

    * Avalanche 0.6.0 computes the importances in train mode: with dropout switched on they are
      those of random subnetworks, and the pass moves the running statistics of batch
      normalisation after the training has ended. Here it is done in eval mode, and the modes are
      restored.
    * It takes the magnitude of *mini-batch mean* gradients, in which the samples cancel, so the
      importances depend on ``train_mb_size``. Here it is the average magnitude of each sample's
      gradient, as the paper (Aljundi et al., 2018) defines it.
    * It takes a loss of exactly zero for a missing one and stops with ``Loss is not available``.
    * It keeps the new weights before it computes the importances: if it is interrupted there, it
      remembers the weights of one experience and the importances of another.

    >>> from avalanche_dco.baselines import MASPlugin
    >>> plugin = MASPlugin(lambda_reg=1)
    """

    _KEEPS = (Kept("importance", TABLE), Kept("weights", WHOLE_TABLE, "params"))
    _SETTINGS = ("_lambda", "alpha")
    _FOR_ALL_PARAMETERS = True
    importance: dict[str, ParamData] | None

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the penalty."""
        if strategy.clock.train_exp_counter == 0 or self.importance is None or self.params is None:
            return
        self._add_penalty(strategy, self._lambda)

    def _tables(self, strategy: SupervisedTemplate) -> list[tuple[Table, Table]]:
        assert self.importance is not None
        assert self.params is not None
        return [(self.importance, self.params)]

    def _get_importance(self, strategy: SupervisedTemplate) -> dict[str, ParamData]:
        batches = loaded_batches(strategy.experience.dataset, _SAMPLES_PER_BATCH, strategy.device)
        return as_param_data(self._importances(strategy.model, batches, None))

    def _importances(
        self, model: nn.Module, batches: Iterable[Batch], criterion: Any
    ) -> dict[str, Tensor]:
        return mean_transformed_gradients(model, batches, _squared_norm, torch.abs)

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the importances and keep the weights."""
        current = self._get_importance(strategy)
        old = (self.importance or {}) if strategy.clock.train_exp_counter else {}
        for name, entry in current.items():
            if name in old:
                entry.data = self.alpha * old[name].expand(entry.shape) + (
                    (1 - self.alpha) * entry.data
                )
        # Not before all is computed: an interrupted pass leaves what is remembered as it was.
        self._finished(strategy, importance=current, params=copy_params_dict(strategy.model))


def _squared_norm(outputs: Tensor, targets: Tensor) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise ModelError(
            "MASPlugin takes the norm of the model's outputs, which have to be one tensor, but "
            f"this model returns {type(outputs).__name__}. Let it return the outputs to be kept."
        )
    return outputs.square().sum()
