"""What DCO is combined with: models, optimizers and plugins that it refuses, and replay."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from avalanche.training.plugins import (
    FromScratchTrainingPlugin,
    GenerativeReplayPlugin,
    MIRPlugin,
)
from avalanche.training.supervised import AR1, DER, ER_ACE, ER_AML
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco.errors import ModelError, SettingError
from avalanche_dco.plugins.support.gradients import trainable

ParameterFilter = Callable[[str, nn.Parameter], bool]

_REPLAY_BESIDE_THE_LOADER = (GenerativeReplayPlugin, MIRPlugin, AR1, DER, ER_ACE, ER_AML)


def replay_beside_the_loader(strategy: SupervisedTemplate) -> list[Any]:
    """The strategy or plugins that train on past samples which do not come from the loader."""
    parts = (strategy, *strategy.plugins)
    return [part for part in parts if isinstance(part, _REPLAY_BESIDE_THE_LOADER)]


def replays(strategy: SupervisedTemplate) -> bool:
    """Whether samples of past experiences are trained on; Avalanche's buffers are known by name."""
    parts = (strategy, *strategy.plugins)
    return bool(replay_beside_the_loader(strategy)) or any(
        hasattr(part, "storage_policy") for part in parts
    )


class DefaultStrength:
    """For plugins whose default strength is lower beside replay.

    Replay corrects what the network answers to past samples, which is a movement along the very
    directions that the penalty holds. A strength that is given is left as it is.
    """

    dco_lambda: float

    def __post_init__(self) -> None:
        """Until a strategy is known there is no replay."""
        super().__post_init__()  # type: ignore[misc]
        self._automatic: float | None = None
        """The strength, while nobody has given or assigned another."""
        if self.dco_lambda is None:
            self.dco_lambda = self._automatic = self._default_strengths()[0]

    @abstractmethod
    def _default_strengths(self) -> tuple[float, float]:
        """The defaults without and beside replay."""

    def before_training(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Look for replay."""
        if self.dco_lambda == self._automatic:
            alone, beside_replay = self._default_strengths()
            self.dco_lambda = self._automatic = beside_replay if replays(strategy) else alone
        super().before_training(strategy, *args, **kwargs)  # type: ignore[misc]


def constrained_parameters(
    model: nn.Module, parameter_filter: ParameterFilter | None
) -> dict[str, nn.Parameter]:
    """The parameters that directions are to be learned for; raises if they cannot be."""
    candidates = trainable(model)
    if not candidates:
        raise ModelError(
            "The model has no trainable parameters (requires_grad is False for all of them, or "
            "there are none), so there is nothing to constrain. Unfreeze some, or train "
            "without this plugin."
        )
    chosen = {
        name: parameter
        for name, parameter in candidates.items()
        if parameter_filter is None or parameter_filter(name, parameter)
    }
    if not chosen:
        raise ModelError(
            "parameter_filter accepts none of the model's trainable parameters "
            f"({', '.join(candidates)}), so there is nothing to constrain. Let it return True "
            "for those that are to be constrained."
        )
    unreal = [repr(name) for name, parameter in chosen.items() if parameter.is_complex()]
    if unreal:
        raise ModelError(
            f"The parameters {', '.join(unreal)} are complex, and directions are real. Keep their "
            "real and imaginary parts in real parameters (torch.view_as_complex puts them "
            "together in forward), or leave them out with parameter_filter."
        )
    return chosen


def refuse_sparse_optimizer(
    optimizer: torch.optim.Optimizer, constrained: dict[str, nn.Parameter]
) -> None:
    """Raise if the optimizer cannot take the gradient of the penalty."""
    if not isinstance(optimizer, torch.optim.SparseAdam):
        return
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    reached = [repr(name) for name, parameter in constrained.items() if id(parameter) in moved]
    if reached:
        raise SettingError(
            "torch.optim.SparseAdam takes sparse gradients only, and the penalty's are dense: it "
            f"could not move {', '.join(reached)} from the second experience on. Use "
            "torch.optim.SGD, or torch.optim.Adam with dense gradients (sparse=False)."
        )


def refuse_other_plugins(strategy: SupervisedTemplate, own: type | tuple[type, ...]) -> None:
    """Raise if a plugin of the strategy contradicts this one."""
    same = [type(plugin).__name__ for plugin in strategy.plugins if isinstance(plugin, own)]
    if len(same) > 1:
        raise SettingError(
            f"The strategy has {len(same)} plugins that constrain directions ({', '.join(same)}): "
            "each would learn directions, and their constraints would add up. Leave one of them in "
            "plugins; DCO(...), DCOComp(...) and DCOKron(...) bring their own."
        )
    if any(isinstance(plugin, FromScratchTrainingPlugin) for plugin in strategy.plugins):
        raise SettingError(
            f"FromScratchTraining resets the weights before every experience, and {same[0]} would "
            "hold the new ones to those of earlier experiences. Use Naive to learn experiences "
            "one after the other, or train without this plugin."
        )
