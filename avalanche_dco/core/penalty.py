r"""The penalty of all past tasks together, as one weighted quadratic.

Eq. (main_obj) sums ``||ENC^j(x - x_j*)||^2`` over past tasks j. ENC is linear, so that
``ENC^j(x - x_j*) = z(x) - t`` with ``t = ENC^j(x_j*)``: of a task's weights x_j* only the k numbers
``t`` are kept. With all tasks' directions side by side,

.. math:: penalty(x) = \lambda \Big( \sum_i w_i (z_i(x) - t_i)^2 + c \Big), \qquad
          \nabla penalty(x) = 2 \lambda \, DEC(w * (z - t)).

DCO has w = 1 and c = 0. Directions shared by n tasks (DCO-COMP) enter once: since
``sum_j ||z - t_j||^2 = n ||z - mean_j t_j||^2 + const``, with w = n, the mean target and the rest
in c.

**Layers apart.** ENC sums over layers (here parameters), ``z = sum_l ENC_l(x_l)``, so that they
may move against each other without a penalty. With targets ``t_l = ENC_l(x_l*)`` for each of them,
the penalty is ``sum_l ||ENC_l(x_l) - t_l||^2`` instead: the formula above for the directions of
:meth:`Directions.by_parameter`, which are the same tensors. This is not in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from avalanche_dco.core.checked import entries, is_floating, require
from avalanche_dco.core.directions import Directions, Weights
from avalanche_dco.errors import SettingError


class Penalty:
    """A weighted quadratic in the codes of the weights.

    :param directions: the prohibited directions of all past tasks.
    :param targets: t, the codes of the weights that are to be kept: one per direction, or, with
        layers apart, one per direction of :meth:`Directions.by_parameter`.
    :param weights: w, one per direction; ones by default.
    :param constant: c, the part that does not depend on the weights.
    :param couple_layers: whether codes are summed over parameters, as in the paper.
    """

    couple_layers: bool = True  # of penalties in checkpoints that are older than this

    def __init__(
        self,
        directions: Directions,
        targets: Tensor,
        weights: Tensor | None = None,
        constant: float = 0.0,
        *,
        couple_layers: bool = True,
    ):
        self.directions = directions
        self.targets = targets
        self.weights = targets.new_ones(directions.k) if weights is None else weights
        self.constant = constant
        self.couple_layers = couple_layers

    @classmethod
    def keeping(cls, x: Weights, directions: Directions, *, couple_layers: bool) -> Penalty:
        """The penalty of one task.

        :param x: the weights to be kept, x_j*.
        :param directions: the task's.
        :param couple_layers: whether codes are summed over parameters.
        """
        coded = directions if couple_layers else directions.by_parameter()
        return cls(directions, coded.encode(x), couple_layers=couple_layers)

    def coded(self) -> tuple[Directions, Tensor]:
        """The directions whose codes are penalised, and w for each of them."""
        if self.couple_layers:
            return self.directions, self.weights
        weights = [self.weights[f.columns] for f in self.directions.factors.values()]
        return self.directions.by_parameter(), torch.cat(weights)

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
            "couple_layers": self.couple_layers,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Penalty:
        """The penalty that :meth:`state` was taken of; anything else is a StateError."""
        names = ("directions", "targets", "weights", "constant", "couple_layers")
        parts, targets, weights, constant, couple_layers = entries(state, names, "the penalty")
        directions = Directions.from_state(parts)
        widths = [f.U.shape[1] for f in directions.factors.values()]
        require(
            isinstance(couple_layers, bool)
            and isinstance(constant, float)
            and is_floating(weights, [directions.k])
            and is_floating(targets, [directions.k if couple_layers else sum(widths)]),
            "the penalty's targets or weights do not belong to its directions",
        )
        return cls(directions, targets, weights, constant, couple_layers=couple_layers)

    def cat(self, other: Penalty) -> Penalty:
        """The sum of two penalties over the weights they have, together, as one penalty.

        :param other: one that couples layers if this one does.
        """
        if self.couple_layers != other.couple_layers:
            raise SettingError(
                "A penalty that couples layers and one that does not cannot be one penalty. Make "
                "both with the same couple_layers."
            )
        directions = self.directions.cat(other.directions)
        if self.couple_layers:
            targets = torch.cat([self.targets, other.targets])
        else:
            mine, theirs = self._targets_by_parameter(), other._targets_by_parameter()
            rows = []
            for name, f in directions.factors.items():
                row = self.targets.new_zeros(f.U.shape[1])  # a gap between them has no targets
                if name in mine:
                    row[: len(mine[name])] = mine[name]
                if name in theirs:
                    row[len(row) - len(theirs[name]) :] = theirs[name]
                rows.append(row)
            targets = torch.cat(rows)
        return Penalty(
            directions,
            targets,
            torch.cat([self.weights, other.weights]),
            self.constant + other.constant,
            couple_layers=self.couple_layers,
        )

    def _targets_by_parameter(self) -> dict[str, Tensor]:
        factors = self.directions.factors
        parts = self.targets.split([f.U.shape[1] for f in factors.values()])
        return dict(zip(factors, parts, strict=True))

    def following(self, x: Mapping[str, Tensor]) -> Penalty:
        """The same penalty for parameters that may have grown or moved to another device."""
        directions = self.directions.following(x)
        device = directions.device
        return Penalty(
            directions,
            self.targets.to(device),
            self.weights.to(device),
            self.constant,
            couple_layers=self.couple_layers,
        )

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
        directions, weights = penalty.coded()
        residual = directions.encode(dict(zip(names, tensors, strict=True)))
        residual -= penalty.targets
        weighted = weights * residual
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
