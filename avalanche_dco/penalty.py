r"""The penalty of all past tasks together, as one weighted quadratic.

Eq. (main_obj) sums ``||ENC^j(x - x_j*)||^2`` over past tasks j. ENC is linear, so that
``ENC^j(x - x_j*) = z(x) - t`` with ``t = ENC^j(x_j*)``: of a task's weights x_j* only the k numbers
``t`` are kept. With all tasks' directions side by side,

.. math:: penalty(x) = \lambda \Big( \sum_i w_i (z_i(x) - t_i)^2 + c \Big), \qquad
          \nabla penalty(x) = 2 \lambda \, DEC(w * (z - t)).

DCO has w = 1 and c = 0. Directions shared by n tasks (DCO-COMP) enter once: since
``sum_j ||z - t_j||^2 = n ||z - mean_j t_j||^2 + const``, with w = n, the mean target and the rest
in c.

**Layers apart.** ENC sums over layers, ``z = sum_l ENC_l(x_l)``, so that layers may move against
each other without a penalty. With targets for every layer, ``t_l = ENC_l(x_l*)``, the penalty is
``sum_l ||ENC_l(x_l) - t_l||^2`` instead: k numbers per layer more, and no other directions. This is
not in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from avalanche_dco.directions import Directions, Weights


def codes(directions: Directions, x: Weights, *, couple_layers: bool) -> Tensor:
    """The targets that keep the weights x: ENC(x), or ENC_l(x_l) for each parameter l.

    :param directions: the directions.
    :param x: the weights.
    :param couple_layers: whether to sum over parameters, as the paper does.
    :return: k codes, or a row of k for each parameter that has a part in the directions.
    """
    if couple_layers:
        return directions.encode(x)
    return directions.by_parameter().encode(x).reshape(len(directions.factors), directions.k)


class Penalty:
    """A weighted quadratic in the codes of the weights.

    :param directions: the prohibited directions of all past tasks.
    :param targets: t, the codes of the weights that are to be kept (:func:`codes`): one per
        direction, or a row of them for each parameter that has a part in the directions.
    :param weights: w, one per direction; ones by default.
    :param constant: c, the part that does not depend on the weights.
    """

    def __init__(
        self,
        directions: Directions,
        targets: Tensor,
        weights: Tensor | None = None,
        constant: float = 0.0,
    ):
        self.directions = directions
        self.targets = targets
        self.weights = targets.new_ones(directions.k) if weights is None else weights
        self.constant = constant

    @property
    def couples_layers(self) -> bool:
        """Whether codes are summed over parameters, as in the paper."""
        return self.targets.ndim == 1

    @property
    def nbytes(self) -> int:
        """Memory held between tasks."""
        return self.directions.nbytes + self.targets.nbytes + self.weights.nbytes

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and strings from which :meth:`from_state` makes the same penalty."""
        return {
            "directions": self.directions.state(),
            "targets": self.targets,
            "weights": self.weights,
            "constant": self.constant,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Penalty:
        """The penalty that :meth:`state` was taken of."""
        return cls(**{**state, "directions": Directions.from_state(state["directions"])})

    def cat(self, other: Penalty) -> Penalty:
        """The sum of two penalties over the weights they have, together, as one penalty.

        :param other: one that couples layers if this one does.
        """
        directions = self.directions.cat(other.directions)
        if self.couples_layers:
            targets = torch.cat([self.targets, other.targets])
        else:
            targets = self.targets.new_zeros(len(directions.factors), directions.k)
            targets[: len(self.targets), : self.directions.k] = self.targets
            row_of = {name: row for row, name in enumerate(directions.factors)}
            for name, row in zip(other.directions.factors, other.targets, strict=True):
                targets[row_of[name], self.directions.k :] = row
        return Penalty(
            directions,
            targets,
            torch.cat([self.weights, other.weights]),
            self.constant + other.constant,
        )

    def following(self, x: Mapping[str, Tensor]) -> Penalty:
        """The same penalty for parameters that may have grown or moved to another device."""
        directions = self.directions.following(x)
        device = directions.device
        return Penalty(directions, self.targets.to(device), self.weights.to(device), self.constant)

    def __call__(
        self, x: Mapping[str, Tensor], strength: float, max_grad_norm: float | None = None
    ) -> Tensor:
        """Value at ``x``, differentiable once.

        :param x: the model's parameters by name; more than the directions' are ignored.
        :param strength: lambda.
        :param max_grad_norm: if the gradient of the penalty (of nothing else) is longer than
            this, it is scaled down to it. The value is not changed by that.
        :return: a scalar.
        """
        names = list(self.directions.factors)
        return _PenaltyFunction.apply(
            self, strength, max_grad_norm, names, *(x[name] for name in names)
        )


class _PenaltyFunction(torch.autograd.Function):
    """Value and gradient in one go: encoding and decoding are one GEMM each per parameter."""

    @staticmethod
    def forward(
        ctx: Any,
        penalty: Penalty,
        strength: float,
        max_grad_norm: float | None,
        names: list[str],
        *tensors: Tensor,
    ) -> Tensor:
        directions = penalty.directions
        if not penalty.couples_layers:
            directions = directions.by_parameter()
        residual = directions.encode(dict(zip(names, tensors, strict=True)))
        residual -= penalty.targets.flatten()
        weighted = (penalty.weights * residual.reshape(penalty.targets.shape)).flatten()
        value = strength * (weighted @ residual + penalty.constant)

        wanted = [
            name for name, needed in zip(names, ctx.needs_input_grad[4:], strict=True) if needed
        ]
        gradient = directions.decode(weighted * (2 * strength), wanted)
        ctx.gradient = [gradient.get(name) for name in names]
        ctx.scale = _shortening(list(gradient.values()), max_grad_norm)
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        factor = grad_output * ctx.scale
        return (
            *(None, None, None, None),
            *(
                None if g is None else (g * factor).to(dtype)
                for g, dtype in zip(ctx.gradient, ctx.dtypes, strict=True)
            ),
        )


def _shortening(gradient: list[Tensor], max_norm: float | None) -> Tensor | float:
    """The factor at most 1 that brings the gradient's l2 norm down to ``max_norm``."""
    if max_norm is None or not gradient:
        return 1.0
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient]))
    # norm = 0 gives inf, which the clamp turns into 1: nothing to shorten, and no division by zero.
    return (max_norm / norm).clamp(max=1.0)
