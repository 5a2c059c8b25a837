"""The penalty of EWC, MAS, RWalk and SI: in each weight the square around an earlier value."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Quadratic:
    r"""The sum of :math:`a (\theta - m)^2` over weights, and a constant.

    Several squares in one weight are one square again, with their constant:
    :math:`\sum_j a_j (\theta - m_j)^2 = A (\theta - m)^2 + c` with :math:`A = \sum_j a_j` and
    :math:`m = \sum_j a_j m_j / A`. So a step takes as long after many experiences as after one.
    """

    def __init__(self) -> None:
        """Begin with zero."""
        self._terms: dict[str, tuple[Tensor, Tensor]] = {}
        self._constant: Tensor | float = 0.0

    @torch.no_grad()
    def add(self, name: str, parameter: Tensor, importance: Tensor, centre: Tensor) -> None:
        r"""Add a parameter's squares, in its precision, but at least float32.

        :param name: name of the parameter.
        :param parameter: the parameter :math:`\theta`, for its device and precision.
        :param importance: the factors :math:`a`, in the parameter's shape.
        :param centre: the values :math:`m`, in the parameter's shape.
        """
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        importance = importance.to(parameter.device, dtype)
        centre = centre.to(parameter.device, dtype)
        if name in self._terms:
            earlier, mean = self._terms[name]
            # The mean moves by a share of the distance: no large numbers cancel.
            total, distance = earlier + importance, centre - mean
            share = torch.where(total == 0, 0, importance / total)
            self._constant = self._constant + (earlier * share * distance.square()).sum()
            importance, centre = total, mean + share * distance
        self._terms[name] = importance, centre

    def of(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The value at these parameters, with a gradient; those without a square do not count."""
        terms = [(p, *self._terms[name]) for name, p in parameters if name in self._terms]
        if not terms:
            return self._constant
        weights, importances, centres = zip(*terms, strict=True)
        return _SumOfSquares.apply(importances, centres, *weights) + self._constant


class _SumOfSquares(torch.autograd.Function):
    """Computes distances once; the gradient is what forward has computed already, times two."""

    @staticmethod
    def forward(
        ctx: Any,
        importances: tuple[Tensor, ...],
        centres: tuple[Tensor, ...],
        *weights: Tensor,
    ) -> Tensor:
        distances = torch._foreach_sub(weights, centres)
        weighted = torch._foreach_mul(distances, importances)
        ctx.importances, ctx.weights = importances, weights
        ctx.save_for_backward(*weighted)
        pairs = zip(weighted, distances, strict=True)
        return sum(
            (torch.dot(a.flatten(), b.flatten()) for a, b in pairs), weights[0].new_zeros(())
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        weighted = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph the gradient has a gradient in turn
            terms = zip(weighted, ctx.importances, ctx.weights, strict=True)
            weighted = [half + a * (w - w.detach()) for half, a, w in terms]
        needed = ctx.needs_input_grad[2:]
        factor = 2 * gradient
        parts = (
            factor * part if needs else None for part, needs in zip(weighted, needed, strict=True)
        )
        return None, None, *parts
