"""What EWC and MAS share: a pass over the samples' gradients after each experience."""

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avalanche_dco.baselines.per_sample import Batch
from avalanche_dco.baselines.requirements import RealDenseGradients
from avalanche_dco.baselines.samples import unpacked
from avalanche_dco.errors import GradientError
from avalanche_dco.plugins.support.checks import InputChecks
from avalanche_dco.plugins.support.isolation import model_kept, random_state_kept


class PerSampleImportances(RealDenseGradients, InputChecks):
    """Tries the pass on two samples before a strategy's first step.

    A model or a criterion that the pass cannot deal with is thus refused before it is trained.
    """

    @abstractmethod
    def _importances(
        self, model: nn.Module, batches: Iterable[Batch], criterion: Any
    ) -> dict[str, Tensor]:
        """The importances of each parameter, averaged over the samples."""

    def before_training_iteration(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse what the pass after the experience would fail on."""
        super().before_training_iteration(strategy, *args, **kwargs)
        model = strategy.model
        if strategy.clock.train_iterations or any(map(is_lazy, model.parameters())):
            return
        with model_kept(model, weights=False), random_state_kept():
            model.eval()
            with torch.no_grad():
                outputs = strategy.forward()
            self._check_labels(strategy, outputs)
            # A loss that is infinite now may be finite once the model has been trained.
            with suppress(GradientError):
                x, y, task_labels = unpacked([part[:2] for part in strategy.mbatch])
                self._importances(model, [(x, y, task_labels)], strategy._criterion)
