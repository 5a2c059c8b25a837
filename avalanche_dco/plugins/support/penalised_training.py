"""Step 1 of Algorithm 1: training with the penalty of past experiences and the pull to x_0."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from avalanche_dco.core.implicit_step import ImplicitStep
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.support.direction_settings import DirectionSettings
from avalanche_dco.plugins.support.gradients import trainable
from avalanche_dco.plugins.support.reporting import experience_number, publish

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

_LR_TOLERANCE = 1.1
"""Learning rates may change by this factor before the implicit step is prepared for them anew."""


class PenalisedTraining(DirectionSettings):
    """Avalanche callbacks of step 1; for plugins to inherit from."""

    def __post_init__(self) -> None:
        """Nothing has been learned yet."""
        super().__post_init__()
        self.penalty: Penalty | None = None
        """The penalty of all past experiences; None before the first has been learned."""
        self._end_training()

    def _end_training(self) -> None:
        """Let go of what lives for one experience, one epoch and one iteration."""
        self._x_0: Mapping[str, Tensor] = {}
        self._used: frozenset[str] = frozenset()
        self._implicit: ImplicitStep | None = None
        self._stability_checked = False
        self._penalties: list[Tensor] = []
        self._pending: tuple[Tensor, Tensor] | None = None
        # Updates since the penalty's last step, and how many are to have one step.
        self._updates, self._together = 0, self.penalty_every

    def _start_training(self, strategy: SupervisedTemplate) -> None:
        """x_0 <- x; nothing has been used in this experience so far."""
        self._end_training()
        if self.penalty is not None:
            _ = self.penalty.coded  # now, not in an iteration
        if self.gamma_1 and (self.pull_first or strategy.clock.train_exp_counter > 0):
            self._x_0 = {n: p.detach().clone() for n, p in trainable(strategy.model).items()}
        if self.penalty_step == "implicit":
            step_sizes(strategy.optimizer)  # refuses now rather than in the first iteration

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """L_i = L_ce + lambda sum_j ||ENC^j(x - x_j*)||^2, Eq. (main_obj).

        The penalty joins the loss as a leaf: its gradient is then the factor that the strategy puts
        on the loss, such as a GradScaler's.
        """
        if self.penalty is not None and self.dco_lambda > 0 and self.penalty_step == "gradient":
            residual = self.penalty.residual(dict(strategy.model.named_parameters()))
            value = self.penalty.value(residual, self.dco_lambda)
            self._penalties.append(value)
            self._pending = residual, value.clone().requires_grad_()
            strategy.loss += self._pending[1]

    @torch.no_grad()
    def after_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Note what this experience uses; add the penalty's gradient."""
        parameters = trainable(strategy.model)
        self._used |= {name for name, p in parameters.items() if p.grad is not None}
        pending, self._pending = self._pending, None
        if pending is None or pending[1].grad is None:
            return
        assert self.penalty is not None
        residual, factor = pending[0], pending[1].grad
        moving = self._moving(parameters)
        self._warn_of_instability(strategy, moving)
        gradient = self.penalty.gradient(
            residual, self.dco_lambda, moving, self.max_penalty_grad_norm
        )
        for name, parameter in moving.items():
            part = (gradient[name] * factor).to(parameter.dtype)
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = part if parameter.grad is None else part.add_(parameter.grad)
            else:
                parameter.grad.add_(part)

    @torch.no_grad()
    def after_update(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """The pull, x <- x - gamma_1 (x - x_0), and the implicit step of the penalty."""
        if self.gamma_1:
            for name, parameter in trainable(strategy.model).items():
                if name in self._x_0:  # one that is not used is at x_0
                    parameter.lerp_(self._x_0[name], self.gamma_1)
        self._updates += 1
        if self._updates >= self._together:
            self._make_implicit_step(strategy)

    @torch.no_grad()
    def _make_implicit_step(self, strategy: SupervisedTemplate) -> None:
        """The penalty's step for all updates since the last one, if there are any."""
        updates, self._updates = self._updates, 0
        if (
            updates
            and self.penalty is not None
            and self.dco_lambda > 0
            and self.penalty_step == "implicit"
        ):
            step = self._prepared(strategy, self.penalty, self._moving(trainable(strategy.model)))
            value = step(dict(strategy.model.named_parameters()), self.max_penalty_grad_norm)
            self._penalties.append(value)

    def before_training_epoch(
        self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any
    ) -> None:
        """Divide the epoch's updates evenly, so that none is left for a shorter last step."""
        length = length_hint(strategy.dataloader)  # 0 where nobody knows
        steps = -(-length // self.penalty_every)
        self._together = -(-length // steps) if steps else self.penalty_every
        super().before_training_epoch(strategy, *args, **kwargs)  # type: ignore[misc]

    def before_eval(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Evaluate weights that the penalty has moved, also within an epoch."""
        self._make_implicit_step(strategy)
        super().before_eval(strategy, *args, **kwargs)  # type: ignore[misc]

    def after_training_epoch(self, strategy: SupervisedTemplate, *args: Any, **kwargs: Any) -> None:
        """Leave no update without its penalty; report the penalty, averaged over the epoch."""
        self._make_implicit_step(strategy)
        if self._penalties:
            mean = torch.stack(self._penalties).mean().item()
            publish(strategy, "DCO_Penalty", mean, strategy.clock.train_iterations)
            self._penalties = []
        super().after_training_epoch(strategy, *args, **kwargs)  # type: ignore[misc]

    def _moving(self, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """The parameters that the penalty moves."""
        assert self.penalty is not None
        return {
            name: parameters[name]
            for name in self.penalty.directions.factors
            if name in parameters and (self.move_unused or name in self._used)
        }

    def _prepared(
        self, strategy: SupervisedTemplate, penalty: Penalty, moving: Mapping[str, Parameter]
    ) -> ImplicitStep:
        """The implicit step for the present learning rates.

        The optimizer moves by ``-D grad L`` in each of n updates that it follows. So its own step
        sizes are n D: training comes to rest where loss and penalty balance, whatever n is.
        """
        by_parameter = step_sizes(strategy.optimizer)
        sizes = {
            name: by_parameter[p] * self._together
            for name, p in moving.items()
            if by_parameter.get(p, 0.0) > 0
        }
        held = self._implicit
        if (
            held is None
            or held.penalty is not penalty
            or held.strength != self.dco_lambda
            or held.sizes.keys() != sizes.keys()
            or any(
                not 1 / _LR_TOLERANCE <= size / held.sizes[name] <= _LR_TOLERANCE
                for name, size in sizes.items()
            )
        ):
            self._implicit = held = None  # frees its memory before the next is made
            self._implicit = held = ImplicitStep(penalty, self.dco_lambda, sizes)
        return held

    def _warn_of_instability(
        self, strategy: SupervisedTemplate, moving: Mapping[str, Parameter]
    ) -> None:
        """Once per experience; only plain gradient descent has this limit."""
        if self._stability_checked or not isinstance(strategy.optimizer, torch.optim.SGD):
            return
        assert self.penalty is not None
        self._stability_checked = True
        rates = {p: float(g["lr"]) for g in strategy.optimizer.param_groups for p in g["params"]}
        sizes = {name: rates.get(p, 0.0) for name, p in moving.items()}
        if not sizes:
            return
        limit = 2 * self.dco_lambda * self.penalty.sharpness(sizes).item()
        if limit > 1:
            warnings.warn(
                f"Experience {experience_number(strategy)}: the learning rate is too large for "
                f"gradient steps of the penalty: lr * 2 * dco_lambda * ||W^T W|| = {limit:.3g} "
                "exceeds 1. They overshoot, and far beyond 1 they forget more or diverge. Use "
                f"penalty_step='implicit', a dco_lambda of at most {self.dco_lambda / limit:.2g}, "
                "or a learning rate lower by this factor.",
                stacklevel=2,
            )


def step_sizes(optimizer: torch.optim.Optimizer) -> dict[Parameter, float]:
    """How far the optimizer moves every parameter along a gradient that does not change.

    With momentum mu that is ``lr / (1 - mu)`` per step. The penalty has to move it as far per
    gradient, so that training ends where loss and penalty balance as Eq. (main_obj) says.
    Adaptive optimizers scale gradients to about 1; for them it is lr.

    :param optimizer: its parameter groups have to say their ``lr``.
    """
    sizes = {}
    for group in optimizer.param_groups:
        if "lr" not in group:
            raise SettingError(
                f"penalty_step='implicit' needs the optimizer's learning rate, and a parameter "
                f"group of {type(optimizer).__name__} has no 'lr'. Use penalty_step='gradient'."
            )
        momentum = group.get("momentum", 0.0)
        gain = (1 - group.get("dampening", 0.0)) / (1 - momentum) if momentum < 1 else 1.0
        for parameter in group["params"]:
            sizes[parameter] = float(group["lr"]) * gain
    return sizes
