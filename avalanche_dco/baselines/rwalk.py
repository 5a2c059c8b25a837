"""Riemannian Walk that trains in train mode, with growing heads and short experiences."""

from typing import Any

import torch
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData, copy_params_dict, zerolike_params_dict
from torch import Tensor

from avalanche_dco.baselines.shared import TABLE, WHOLE_TABLE, QuadraticPenalty, Table
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.kept import Kept


class RWalkPlugin(QuadraticPenalty, plugins.RWalkPlugin):
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
    iter_importance: dict[str, ParamData] | None
    iter_params: dict[str, ParamData]

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
        super().before_training_exp(strategy, **kwargs)

    def before_backward(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Add the penalty."""
        if strategy.clock.train_exp_counter > 0:
            self._add_penalty(strategy, self.ewc_lambda)

    def _tables(self, strategy: SupervisedTemplate) -> list[tuple[Table, Table]]:
        assert self.exp_penalties is not None
        assert self.exp_params is not None
        return [(self.exp_penalties, self.exp_params)]

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

    # The next two compute what Avalanche's do, with the same rounding, in fewer tensors.

    @torch.no_grad()
    def _update_importance(self, strategy: SupervisedTemplate) -> None:
        old, self.iter_importance = self.iter_importance or {}, {}
        for name, gradient in self.iter_grad.items():
            importance = gradient.data.square()
            if name in old:
                kept = (1 - self.ewc_alpha) * old[name].expand(importance.shape)
                importance.mul_(self.ewc_alpha).add_(kept)
            self.iter_importance[name] = ParamData(
                name, init_tensor=importance, device=importance.device
            )

    @torch.no_grad()
    def _update_loss(self, strategy: SupervisedTemplate) -> None:
        before, self.iter_params = self.iter_params, {}  # its tensors are written over here
        for name, parameter in strategy.model.named_parameters():
            if name in self.iter_grad:
                backwards = before[name].data.sub_(parameter)
                gain = backwards.mul_(self.iter_grad[name].data)
                self.checkpoint_loss[name].data.add_(gain)


def _share(values: Tensor, largest: Tensor) -> Tensor:
    return values / largest if largest > 0 else torch.zeros_like(values)
