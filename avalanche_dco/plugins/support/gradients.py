"""Gradients of a strategy's model, by its own forward pass and criterion, and samples of them.

Step 3 of Algorithm 1 fits directions to gradients that a :class:`GradientSampler` samples.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from avalanche_dco.core.cone import norm_of
from avalanche_dco.core.factors import Weights
from avalanche_dco.errors import GradientError, ModelError


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


@contextmanager
def undone_on_error(parameters: dict[str, Parameter]) -> Iterator[dict[str, Tensor]]:
    """Give the parameters their values back if the block is interrupted or refuses something.

    :return: a copy of these values.
    """
    before = snapshot(parameters)
    try:
        yield before
    except BaseException:
        assign(parameters, before)
        raise


def _forward(strategy: SupervisedTemplate, batch: Any) -> Any:
    """The strategy's own forward pass, which a subclass may have changed."""
    strategy.mbatch = batch
    strategy._unpack_minibatch()
    strategy.mb_output = strategy.forward()
    return strategy.mb_output


def criterion_gradients(
    strategy: SupervisedTemplate, batch: Any, parameters: dict[str, Parameter]
) -> tuple[Tensor | None, ...]:
    """Gradient of the plain criterion, without the penalty; ``strategy.loss`` is its value."""
    _forward(strategy, batch)
    strategy.loss = strategy.criterion()
    return torch.autograd.grad(strategy.loss, list(parameters.values()), allow_unused=True)


def outputs_of(strategy: SupervisedTemplate, batch: Any) -> Tensor:
    """The model's outputs on a batch, by the strategy's own forward pass."""
    outputs = _forward(strategy, batch)
    require_one_tensor(outputs)
    return outputs


def require_one_tensor(outputs: Any) -> None:
    """Raise unless a model returns one tensor, whose gradients directions can be made of."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            "Gradients of the outputs need a model that returns one tensor, but this one returns "
            f"{type(outputs).__name__}. Use DCOPlugin(directions='trained'), which learns from the "
            "criterion's gradients."
        )


_SMALL_MOVE = 1e-3
"""A move of this share of the weights' norm is one that does not diverge."""


class GradientSampler(ABC):
    """Samples the m gradients of one autoencoder update after another."""

    def __init__(
        self,
        strategy: SupervisedTemplate,
        stream: Iterator[Any],
        constrained: dict[str, Parameter],
        gradients_per_update: int,
    ):
        self.reached: set[str] = set()
        """Names of the parameters that had a gradient at least once."""
        self._strategy = strategy
        self._stream = stream
        self._m = gradients_per_update
        self._parameters = trainable(strategy.model)
        self._none = {name: torch.zeros_like(p) for name, p in constrained.items()}

    @abstractmethod
    def sample(self, observe: Callable[[Weights], None]) -> None:
        """Sample m gradients.

        :param observe: called with each of them, by name; zeros for parameters that have none.
        """

    def _batches(self) -> Iterator[Any]:
        return itertools.islice(self._stream, self._m)

    def _dense(self, gradients: Sequence[Tensor | None]) -> Weights:
        by_name = dict(zip(self._parameters, gradients, strict=True))
        found = {
            name: g.to_dense() if g.is_sparse else g
            for name in self._none
            if (g := by_name[name]) is not None
        }
        self.reached.update(found)
        return self._none | found


class TrajectorySampler(GradientSampler):
    """Gradients of the criterion while the model moves on by plain SGD near x_i*.

    :param x_star: x_i*.
    :param tau: gradients per move of the model.
    :param lr: eta, the learning rate of these moves.
    :param gamma_2: pull towards x_i* after the m gradients of an update.
    """

    def __init__(
        self, *args: Any, x_star: Weights, tau: int, lr: float, gamma_2: float, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self._x_star, self._tau, self._lr, self._gamma_2 = x_star, tau, lr, gamma_2
        self._size = norm_of([x_star[name] for name in self._parameters])
        self._first_move: float | None = None

    def sample(self, observe: Callable[[Weights], None]) -> None:
        """Descend, x <- x - eta g, after tau gradients with sum g; pull back after all m."""
        total: dict[str, Tensor] = {}
        moves = []
        for j, batch in enumerate(self._batches(), 1):
            gradients = criterion_gradients(self._strategy, batch, self._parameters)
            observe(self._dense(gradients))
            for name, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    total[name] = gradient if name not in total else total[name] + gradient
            if j % self._tau == 0:
                moves.append(self._descend(total))
                total = {}
        # Looked at once per update: a look at each move would make a GPU wait for it.
        self._refuse_divergence(torch.stack(moves).tolist())
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.lerp_(self._x_star[name], self._gamma_2)

    @torch.no_grad()
    def _descend(self, gradient: Weights) -> Tensor:
        """Move the model; returns the length of the move."""
        for name, part in gradient.items():
            self._parameters[name].sub_(part, alpha=self._lr)
        return self._lr * torch.stack([part.norm() for part in gradient.values()]).norm()

    def _refuse_divergence(self, moves: list[float]) -> None:
        """Raise if a single move is longer than the vector of all weights."""
        if self._first_move is None:
            self._first_move = moves[0]
        longest = max(filter(math.isfinite, moves), default=0.0)
        if longest <= self._size:
            return
        start = min(self._first_move, longest) if self._first_move > 0 else longest
        advice = min(self._lr / 10, self._lr * _SMALL_MOVE * self._size / start)
        raise GradientError(
            f"The model diverges while gradients are sampled in step 3: with trajectory_lr="
            f"{self._lr:g}, {self._tau} gradients move it by {longest:.2g} (by {start:.2g} at "
            f"first), and the norm of all its weights is {self._size:.2g}. Use "
            f"trajectory_lr={advice:.0e}, or a criterion that averages over samples."
        )


class LogitSampler(GradientSampler):
    """Gradients of the outputs with random weights r ~ N(0, I), at x_i*.

    Over r, the outer products of these gradients average to J^T J, the Gauss-Newton matrix of a
    squared loss on the outputs. Unlike the criterion's gradients, they do not vanish as the
    criterion does.
    """

    def __init__(self, *args: Any, x_star: Weights, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assign(self._parameters, x_star)

    def sample(self, observe: Callable[[Weights], None]) -> None:
        """The model does not move: there is no descent direction to follow."""
        for batch in self._batches():
            outputs = outputs_of(self._strategy, batch)
            r = torch.randn_like(outputs)
            weights = list(self._parameters.values())
            observe(self._dense(torch.autograd.grad(outputs, weights, r, allow_unused=True)))
