"""Memory Aware Synapses with the importances of the function that was learned."""

from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.utils import ParamData
from torch import Tensor

from avalanche_dco.baselines.param_data import TABLE, WHOLE_TABLE, as_param_data
from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.baselines.samples import loaded_batches
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.kept import Kept
from avalanche_dco.plugins.support.model_state import modes_kept
from avalanche_dco.plugins.support.state import PluginState

_SAMPLES_PER_BATCH = 256


class MASPlugin(InputChecks, PluginState, plugins.MASPlugin):
    """Avalanche's MAS with three corrections.

    * Avalanche 0.6.0 computes the importances in train mode: with dropout switched on they are
      those of random subnetworks, and the pass moves the running statistics of batch
      normalisation after the training has ended. Here it is done in eval mode, and the modes are
      put back.
    * It takes the magnitude of *mini-batch mean* gradients, in which the samples cancel, so the
      importances depend on ``train_mb_size``. Here it is the average magnitude of each sample's
      gradient, as the paper (Aljundi et al., 2018) defines it.
    * It takes a loss of exactly zero for a missing one and stops with ``Loss is not available``.
    """

    _KEEPS = (Kept("importance", TABLE), Kept("weights", WHOLE_TABLE, "params"))
    _SETTINGS = ("_lambda", "alpha")
    _FOR_ALL_PARAMETERS = True

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty."""
        if strategy.clock.train_exp_counter == 0:
            return
        assert self.importance is not None
        assert self.params is not None
        for name, parameter in strategy.model.named_parameters():
            if name in self.importance:
                importance = self.importance[name].expand(parameter.shape)
                distance = parameter - self.params[name].expand(parameter.shape)
                strategy.loss += self._lambda * (importance * distance.square()).sum()

    def _get_importance(self, strategy: Any) -> dict[str, ParamData]:
        model = strategy.model
        batches = loaded_batches(strategy.experience.dataset, _SAMPLES_PER_BATCH, strategy.device)
        with modes_kept(model):
            model.eval()
            importance = mean_transformed_gradients(model, batches, _squared_norm, torch.abs)
        return as_param_data(importance)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Compute the importances and keep the weights."""
        super().after_training_exp(strategy, **kwargs)
        self._finished(strategy)


def _squared_norm(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum()
