r"""The penalty of all past tasks together, as one weighted quadratic.

Eq. (main_obj) sums ``||ENC^j(x - x_j*)||^2`` over past tasks j. ENC is linear, so that
``ENC^j(x - x_j*) = z(x) - t`` with ``t = ENC^j(x_j*)``: of a task's weights x_j* only the k numbers
``t`` are kept. With all tasks' directions side by side,

.. math:: penalty(x) = \lambda \Big( \sum_i w_i (z_i(x) - t_i)^2 + c \Big), \qquad
          \nabla penalty(x) = 2 \lambda \, DEC(w * (z - t)).

DCO has w = 1 and c = 0. Directions shared by n tasks (DCO-COMP) enter once: since
``sum_j ||z - t_j||^2 = n ||z - mean_j t_j||^2 + const``, with w = n, the mean target and the rest
in c.

**Uncoupled layers.** ENC sums over layers (here parameters), ``z = sum_l ENC_l(x_l)``, so that they
may move against each other without a penalty. With targets ``t_l = ENC_l(x_l*)`` for each of them,
the penalty is ``sum_l ||ENC_l(x_l) - t_l||^2`` instead: the formula above for the directions of
:meth:`Directions.by_parameter`, which are the same tensors. This is not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.core.checked import entries, is_floating, require
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights
from avalanche_dco.core.paired import in_pairs
from avalanche_dco.errors import SettingError

_POWER_ITERATIONS = 50  # within a tenth of the largest eigenvalue


class Penalty:
    """A weighted quadratic in the codes of the weights.

    :param directions: the prohibited directions of all past tasks.
    :param targets: t, the codes of the weights that are to be kept: one per direction, or, with
        uncoupled layers, one per direction of :meth:`Directions.by_parameter`.
    :param weights: w, one per direction; ones by default.
    :param constant: c, the part that does not depend on the weights.
    :param couple_layers: whether codes are summed over parameters, as in the paper.
    """

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

    @cached_property
    def coded(self) -> tuple[Directions, Tensor]:
        """The directions whose codes are penalised, and w for each of them.

        To find out which of them are pairs, a device has to be waited for. So this is looked at
        before a training begins.
        """
        directions, weights = self.directions, self.weights
        if not self.couple_layers:
            weights = torch.cat([weights[f.columns] for f in directions.factors.values()])
            directions = directions.by_parameter()
        factors = {name: in_pairs(f) for name, f in directions.factors.items()}
        return Directions(directions.k, factors), weights

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
                "A penalty that couples layers and one that does not cannot be joined. Make both "
                "with the same couple_layers."
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

    def adapted_to(self, x: Mapping[str, Tensor]) -> Penalty:
        """The same penalty for parameters that may have grown or moved to another device."""
        directions = self.directions.adapted_to(x)
        device = directions.device
        return Penalty(
            directions,
            self.targets.to(device),
            self.weights.to(device),
            self.constant,
            couple_layers=self.couple_layers,
        )

    def residual(self, x: Weights) -> Tensor:
        """``z(x) - t``, of all codes that are penalised.

        :param x: the model's parameters by name; more than the directions' are ignored.
        """
        return self.coded[0].encode(x).sub_(self.targets)

    def value(self, residual: Tensor, strength: float) -> Tensor:
        """The penalty itself, a scalar.

        :param residual: of the weights.
        :param strength: lambda.
        """
        return strength * ((self.coded[1] * residual) @ residual + self.constant)

    def gradient(
        self,
        residual: Tensor,
        strength: float,
        names: Iterable[str],
        max_norm: float | None = None,
    ) -> dict[str, Tensor]:
        """The gradient with respect to some parameters.

        :param residual: of the weights.
        :param strength: lambda.
        :param names: the parameters.
        :param max_norm: if the gradient is longer than this, it is scaled down to it.
        """
        directions, weights = self.coded
        # Strengths beyond any use would overflow in the norm: their excess comes in afterwards.
        moderate = min(strength, 1e6)
        gradient = directions.decode(weights * residual * (2 * moderate), names)
        scale = shortening(list(gradient.values()), max_norm, most=strength / moderate)
        return {name: part * scale for name, part in gradient.items()}

    def sharpness(self, sizes: Mapping[str, float]) -> Tensor:
        """``||w W^T D W||``, the largest eigenvalue: the steepest curvature, less ``2 lambda``.

        :param sizes: the step sizes D of the parameters that move.
        """
        directions, weights = self.coded
        moving = Directions(
            directions.k, {name: f for name, f in directions.factors.items() if name in sizes}
        )

        def once(codes: Tensor) -> Tensor:
            step = moving.decode(weights * codes)
            return moving.encode({name: part * sizes[name] for name, part in step.items()})

        return largest_eigenvalue(once, weights)

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
        residual = self.residual(x)
        value = self.value(residual, strength)
        moving = [name for name in self.directions.factors if x[name].requires_grad]
        for name, part in self.gradient(residual, strength, moving, max_grad_norm).items():
            # Adds zero, of which the derivative is the gradient.
            value = value + (part.to(x[name].dtype) * (x[name] - x[name].detach())).sum()
        return value


def shortening(gradient: list[Tensor], max_norm: float | None, most: float = 1.0) -> Tensor | float:
    """The factor that brings the gradient's l2 norm down to ``max_norm``, or ``most``.

    :param gradient: its parts.
    :param max_norm: None for any norm.
    :param most: what the factor is at most.
    """
    if max_norm is None or not gradient:
        return most
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient]))
    # norm = 0 gives inf, which the clamp mends: nothing to shorten, and no division by zero.
    return (max_norm / norm).clamp(max=min(most, torch.finfo(norm.dtype).max))


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor], like: Tensor, iterations: int = _POWER_ITERATIONS
) -> Tensor:
    """The largest eigenvalue of a matrix with non-negative ones, by power iteration.

    :param apply: multiplies a vector by the matrix.
    :param like: a tensor of the vectors' length, precision and device.
    :param iterations: the fewer, the rougher, and never too large.
    """
    generator = torch.Generator("cpu").manual_seed(0)  # the user's random numbers stay untouched
    vector = torch.randn(len(like), generator=generator, device="cpu").to(like)
    norm = torch.linalg.vector_norm(vector)
    for _ in range(iterations):
        vector = apply(vector / norm.clamp(min=torch.finfo(norm.dtype).tiny))
        norm = torch.linalg.vector_norm(vector)
    return norm
