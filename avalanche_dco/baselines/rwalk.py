"""Riemannian Walk that trains in train mode, with growing heads and short experiences."""

from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData, copy_params_dict, zerolike_params_dict
from torch import Tensor

from avalanche_dco.baselines.shared import TABLE, WHOLE_TABLE, CorrectedPlugin
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.kept import Kept


class RWalkPlugin(CorrectedPlugin, plugins.RWalkPlugin):
    """Avalanche's RWalk with four corrections.

    * Avalanche 0.6.0 puts the model into eval mode before every training iteration and leaves it
      there: dropout is off and batch normalisation frozen for the whole training.
    * Parameters that appear with an experience (the head of a new task) raise a ``KeyError``, and
      would never be given a score: its tables are made before the model is adapted, and scores are
      kept only for parameters of the first experience.
    * If the gradients are zero throughout, importances and scores are divided by zero and the
      penalty is NaN. Here it is zero.
    * If no interval of ``delta_t`` iterations is complete at the end of an experience, all scores
      are zero and are divided by their maximum: the penalty is NaN. The interval that the end of
      the experience cuts short is counted instead; in Avalanche it is lost, or continues into the
      next experience.

    >>> from avalanche_dco.baselines import RWalkPlugin
    >>> plugin = RWalkPlugin(ewc_lambda=1)
    """

    # exp_importance is iter_importance as it was at the end of an experience.
    _KEEPS = (
        Kept("iter_importance", TABLE),
        Kept("exp_scores", TABLE),
        Kept("exp_params", WHOLE_TABLE),
        Kept("exp_penalties", TABLE),
    )
    _SETTINGS = ("ewc_lambda", "ewc_alpha", "delta_t")
    _CHANGES_WITHIN = True
    _FOR_ALL_PARAMETERS = True
    _NEEDS_SHAPES = True

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Refuse a training without steps: the importances are made of them."""
        if strategy.train_epochs < 1:
            raise SettingError(
                f"train_epochs={strategy.train_epochs} trains nothing, and RWalkPlugin computes "
                "its importances from the steps of the training. Write at least train_epochs=1."
            )
        super().before_training(strategy, *args, **kwargs)

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Start the first interval of the experience, with the parameters it has by now."""
        self.checkpoint_loss = zerolike_params_dict(strategy.model)
        self.checkpoint_scores = zerolike_params_dict(strategy.model)
        self.checkpoint_params = copy_params_dict(strategy.model)

    def after_training_exp(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Count the interval cut short, and give new parameters their first score."""
        self._update_score(strategy)
        if self.exp_scores is not None:
            for name, score in self.checkpoint_scores.items():
                if name not in self.exp_scores:
                    self.exp_scores[name] = ParamData(
                        name, init_tensor=score.data.clone(), device=score.device
                    )
        super().after_training_exp(strategy, *args, **kwargs)
        self._set_penalties()
        self._finished(strategy)

    def _set_penalties(self) -> None:
        """Avalanche's, without its division by zero where no weight moved or mattered."""
        assert self.exp_scores is not None
        assert self.exp_importance is not None
        most_moved = max(score.data.max() for score in self.exp_scores.values())
        most_important = max(importance.data.max() for importance in self.exp_importance.values())
        self.exp_penalties = {}
        for name, score in self.exp_scores.items():
            if name in self.exp_importance:
                importance = self.exp_importance[name].data
                moved = score.expand(importance.shape).relu()
                penalty = _share(importance, most_important) + _share(moved, most_moved)
                self.exp_penalties[name] = ParamData(
                    name, init_tensor=penalty, device=penalty.device
                )

    def _update_grad(self, strategy: SupervisedTemplate) -> None:
        model = strategy.model
        modes = [(module, module.training) for module in model.modules()]
        try:
            if not self._seen:
                model.eval()
                with torch.no_grad():
                    outputs = strategy.forward()
                self._check_labels(strategy, outputs)
            super()._update_grad(strategy)
        finally:
            for module, training in modes:
                module.training = training
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
                self.iter_grad[name].data = parameter.grad.clone()


def _share(values: Tensor, largest: Tensor) -> Tensor:
    return values / largest if largest > 0 else torch.zeros_like(values)
