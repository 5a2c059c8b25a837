"""Gradients of a strategy's model, by the strategy's own forward pass and criterion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from avalanche_dco.core.factors import Weights
from avalanche_dco.errors import ModelError

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def trainable(model: torch.nn.Module) -> dict[str, Parameter]:
    """The parameters that can move, by name."""
    return {
        name: p
        for name, p in model.named_parameters()
        if p.requires_grad and not is_lazy(p) and p.numel()
    }


def snapshot(parameters: dict[str, Parameter]) -> dict[str, Tensor]:
    """A copy of the parameters' values."""
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def assign(parameters: dict[str, Parameter], values: Weights) -> None:
    """Give the parameters these values."""
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def _forward(strategy: SupervisedTemplate, batch: Any) -> Any:
    """The strategy's own forward pass, so that whatever a subclass makes of it holds here too."""
    strategy.mbatch = batch
    strategy._unpack_minibatch()
    strategy.mb_output = strategy.forward()
    return strategy.mb_output


def criterion_gradients(
    strategy: SupervisedTemplate, batch: Any, parameters: dict[str, Parameter]
) -> list[Tensor | None]:
    """Gradient of the plain criterion, without the penalty; ``strategy.loss`` is its value."""
    _forward(strategy, batch)
    strategy.loss = strategy.criterion()
    return list(torch.autograd.grad(strategy.loss, list(parameters.values()), allow_unused=True))


def logit_gradients(
    strategy: SupervisedTemplate, batch: Any, parameters: dict[str, Parameter]
) -> list[Tensor | None]:
    """Gradient of the outputs with random weights r ~ N(0, I).

    Over r, the outer products of these gradients average to J^T J, the Gauss-Newton matrix of a
    squared loss on the outputs. Unlike the criterion's gradients, they do not vanish as the
    criterion does.
    """
    outputs = outputs_of(strategy, batch)
    return list(
        torch.autograd.grad(
            outputs,
            list(parameters.values()),
            grad_outputs=torch.randn_like(outputs),
            allow_unused=True,
        )
    )


def outputs_of(strategy: SupervisedTemplate, batch: Any) -> Tensor:
    """The model's outputs on a batch, by the strategy's own forward pass."""
    outputs = _forward(strategy, batch)
    require_one_tensor(outputs)
    return outputs


def require_one_tensor(outputs: Any) -> None:
    """Raise unless a model's outputs have gradients that can be told apart."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            "Gradients of the outputs need a model that returns one tensor, but this one returns "
            f"{type(outputs).__name__}. Use DCOPlugin(directions='trained'), which learns from the "
            "criterion's gradients."
        )
