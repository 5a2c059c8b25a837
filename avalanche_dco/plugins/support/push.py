"""Step 2 of Algorithm 1 on a strategy's model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from avalanche_dco.core.cone import TrajectoryEnds, has_direction, norm_of, push
from avalanche_dco.plugins.support.checks import refuse_broken
from avalanche_dco.plugins.support.gradients import criterion_gradients, snapshot, trainable
from avalanche_dco.plugins.support.reporting import Wait, progress_bar
from avalanche_dco.plugins.support.training_batches import CANNOT_BE_READ_AGAIN, warn_not_pushed

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def push_into_cone(
    strategy: SupervisedTemplate,
    batches: Iterator[Any],
    length: int,
    *,
    averaged_points: int,
    theta: float,
    wait: Wait | None = None,
) -> dict[str, Tensor]:
    """Let the optimizer travel on, and step into the cone.

    The optimizer itself makes the steps: what a strategy adds in ``optimizer_step``, such as
    dividing gradients by a loss scale, belongs to its own backward pass.

    :return: x_i*, where training ended if there is no direction to push in; the model is left where
        the trajectory ended.
    """
    parameters = trainable(strategy.model)
    start = snapshot(parameters)
    if length == 0:
        return start
    ends = TrajectoryEnds(length, averaged_points)
    if wait is not None:
        wait.expect(length, "use fewer push_epochs")
    for batch in progress_bar(
        strategy, itertools.islice(batches, length), length, "DCO: push into the cone"
    ):
        _step(strategy, batch, parameters)
        ends.add(list(parameters.values()))
        if wait is not None:
            wait.advance(strategy)
    if not ends.complete:
        warn_not_pushed(strategy, CANNOT_BE_READ_AGAIN)
        return start
    refuse_broken(parameters, "In step 2 (push_epochs)", strategy)
    if not has_direction(ends.first, ends.last):
        if length > 1:
            warn_not_pushed(strategy, _why_no_direction(strategy.optimizer, parameters, ends))
        return start
    return dict(zip(parameters, push(ends.first, ends.last, theta), strict=True))


def _step(strategy: SupervisedTemplate, batch: Any, parameters: dict[str, Parameter]) -> None:
    """One step of the optimizer on the criterion."""

    def criterion() -> Tensor:
        gradients = criterion_gradients(strategy, batch, parameters)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        return strategy.loss

    strategy.optimizer.step(criterion)


_NEXT_TO_NOTHING = 1e-8
_BLOWN_UP = 1e3


def _why_no_direction(
    optimizer: torch.optim.Optimizer, parameters: dict[str, Parameter], ends: TrajectoryEnds
) -> str:
    """What is known of the cause, and the remedy."""
    weights = list(parameters.values())
    moved = norm_of([a - b for a, b in zip(ends.first, ends.last, strict=True)])
    message = (
        f"They do not move in step 2 beyond rounding (by {moved:.2g}, at a norm of "
        f"{norm_of(ends.first):.3g}), so there is no direction to push them in."
    )
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    coarse = {w.dtype for w in weights if torch.finfo(w.dtype).eps > torch.finfo(torch.float32).eps}
    mean_square = norm_of(weights) / sum(w.numel() for w in weights) ** 0.5
    if rate < _NEXT_TO_NOTHING:
        return (
            f"{message} The learning rate is {rate:.2g}: if a scheduler brings it there, put "
            "LRSchedulerPlugin before DCO in the list of plugins, with reset_lr=True."
        )
    if mean_square > _BLOWN_UP:
        return (
            f"{message} The weights have blown up (root mean square {mean_square:.2g}): lower the "
            f"learning rate, {rate:.2g}."
        )
    if all(w.grad is None or not w.grad.any() for w in weights):
        return f"{message} The last gradient is zero."
    if coarse:
        names = ", ".join(sorted(map(str, coarse)))
        eps = max(torch.finfo(dtype).eps for dtype in coarse)
        return (
            f"{message} The weights are {names}, which rounds to {eps:.1g} of a value and loses "
            "smaller updates. Keep the weights in torch.float32 and use torch.autocast."
        )
    return message
