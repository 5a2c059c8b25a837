r"""The implicit (proximal) step of the penalty, exact for any strength and learning rate.

An explicit gradient step of the penalty diverges once ``lr * 2 lambda ||W^T W||`` is too large. The
implicit step takes the gradient at the point where it arrives:

.. math:: x' = \arg\min_y \; penalty(y) + \tfrac12 (y - x)^\top D^{-1} (y - x)
             = x - D \nabla penalty(x').

D = diag(d_l) has one step size per parameter, 0 for one that is to stay. The penalty is a quadratic
in k codes, so that x' solves a k x k system (Woodbury). With ``r = W^T x - t`` and weights w:

.. math:: x' = x - D W a, \qquad \big(\mathrm{diag}(1 / 2 \lambda w) + W^\top D W\big) a = r, \qquad
          W^\top D W = \sum_l d_l (U_l^\top U_l) * (V_l^\top V_l).

``W a`` is the penalty's gradient at x', and ``a / (2 lambda w)`` its residual. The system has to be
factored again only when D or lambda changes. For lambda to infinity the step is a projection onto
``W^T x = t``. If layers are not coupled, there is one such system per parameter; one that has fewer
entries than codes (a bias, a small head) is solved for the gradient ``g = W a`` instead:

.. math:: \big(\mathrm{diag}(1 / 2 \lambda) + d_l W_l w W_l^\top \big) g = W_l w \, r.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, Weights
from avalanche_dco.core.penalty import Penalty, largest_eigenvalue, shortening

_COLUMNS_AT_A_TIME = 512
"""So that the products for the Gram matrix need little memory beside it."""


@dataclass
class _CodeSystem:
    """``(shift I + sqrt(w) W^T D W sqrt(w)) y = sqrt(w) r`` for some parameters, factored.

    :param directions: the directions of these parameters.
    :param columns: the codes that it is about.
    :param roots: sqrt(w) of these codes.
    :param factor: its Cholesky factor, lower triangular.
    :param shift: 1 / 2 lambda, or more where that is below what can be resolved.
    """

    directions: Directions
    columns: slice
    roots: Tensor
    factor: Tensor
    shift: Tensor

    def __call__(self, residual: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The penalty's gradient at x', and the residual there of the codes of this system.

        :param residual: of all codes, at x.
        """
        y = _solve(self.factor, self.roots * residual[self.columns])
        codes = torch.zeros_like(residual)
        codes[self.columns] = self.roots * y
        return self.directions.decode(codes), y.double() * self.shift / self.roots


@dataclass
class _WeightSystem(_CodeSystem):
    """``(shift I + d W w W^T) g = W w r``, for one parameter with fewer entries than codes.

    :param size: d.
    """

    size: float

    def __call__(self, residual: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        codes = torch.zeros_like(residual)
        codes[self.columns] = self.roots.square() * residual[self.columns]
        gradient = {
            name: _solve(self.factor, part.reshape(-1)).reshape(part.shape)
            for name, part in self.directions.decode(codes).items()
        }
        moved = self.directions.encode(gradient)[self.columns] * self.size
        return gradient, (residual[self.columns] - moved).double()


def _solve(factor: Tensor, r: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(factor, r.unsqueeze(1), upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(1)


class ImplicitStep:
    """The step of one penalty with one strength and one step size per parameter.

    :param penalty: the penalty.
    :param strength: lambda.
    :param sizes: the positive step sizes of the parameters that move; all others stay.
    """

    def __init__(self, penalty: Penalty, strength: float, sizes: Mapping[str, float]):
        self.penalty = penalty
        self.strength = strength
        self.directions, weights = penalty.coded
        self.sizes = {name: sizes[name] for name in self.directions.factors if name in sizes}
        self._roots = weights.sqrt()
        together = [list(self.sizes)] if penalty.couple_layers else [[n] for n in self.sizes]
        self._systems = [self._factored(names) for names in together if names]

    @torch.no_grad()
    def __call__(self, x: Weights, max_grad_norm: float | None = None) -> Tensor:
        """Move the parameters in place.

        :param x: the model's parameters by name.
        :param max_grad_norm: the longest gradient with which the penalty may move them.
        :return: the penalty of the weights after the step, a scalar in double precision.
        """
        residual = self.directions.encode(x).sub_(self.penalty.targets)
        left, gradient = residual.to(torch.float64, copy=True), {}
        for system in self._systems:
            part, left[system.columns] = system(residual)
            gradient.update(part)
        scale = shortening(list(gradient.values()), max_grad_norm)
        for name, size in self.sizes.items():
            x[name].sub_((gradient[name] * (scale * size)).to(x[name].dtype))
        share = scale if isinstance(scale, float) else scale.double()
        after = torch.lerp(residual.double(), left, share)
        weighted = self._roots.square() * after
        return self.strength * (weighted @ after + self.penalty.constant)

    def _factored(self, names: list[str]) -> _CodeSystem:
        """The system of some parameters, whose codes are summed, in double precision."""
        factors = {name: self.directions.factors[name] for name in names}
        of_names = Directions(self.directions.k, factors)
        columns = slice(0, of_names.k)
        if not self.penalty.couple_layers:
            columns = factors[names[0]].columns
        roots = self._roots[columns]
        size = self.sizes[names[0]]
        by_weights = not self.penalty.couple_layers and (
            factors[names[0]].shape.numel() < columns.stop - columns.start
        )
        if by_weights:
            matrix = _second_moment(factors[names[0]], roots).mul_(size)
        else:
            matrix = _gram(of_names, {name: self.sizes[name] for name in names}, columns)
            matrix.mul_(roots.double()).mul_(roots.double().unsqueeze(1))
        # Codes and steps are rounded, and a system that is nearly singular (directions that repeat)
        # would amplify that without bound.
        least = torch.finfo(roots.dtype).eps ** (2 / 3)
        largest = largest_eigenvalue(matrix.mv, matrix.diagonal(), iterations=20)
        shift = (largest * least).clamp(min=0.5 / self.strength)
        matrix.diagonal().add_(shift)
        factored = torch.linalg.cholesky(matrix).to(roots.dtype)
        if by_weights:
            return _WeightSystem(of_names, columns, roots, factored, shift, size)
        return _CodeSystem(of_names, columns, roots, factored, shift)


def _second_moment(factors: Factors, roots: Tensor) -> Tensor:
    """W w W^T of one parameter, r c x r c, in double precision."""
    U, V = factors.U.double(), factors.V.double() * roots
    entries = factors.shape.numel()
    moment = U.new_zeros(entries, entries)
    for start in range(0, U.shape[1], _COLUMNS_AT_A_TIME):
        at = slice(start, start + _COLUMNS_AT_A_TIME)
        W = (U[:, None, at] * V[None, :, at]).reshape(entries, -1)
        moment += W @ W.mT
    return moment


def _gram(directions: Directions, sizes: Mapping[str, float], columns: slice) -> Tensor:
    """The sum over parameters of d_l (U_l^T U_l) * (V_l^T V_l), in double precision."""
    k = columns.stop - columns.start
    gram = directions.zeros((k, k)).double()
    for name, size in sizes.items():
        f = directions.factors[name]
        U, V = f.U.double(), f.V.double()
        first, width = f.start - columns.start, U.shape[1]
        part = gram[first : first + width, first : first + width]
        for start in range(0, width, _COLUMNS_AT_A_TIME):
            at, below = slice(start, start + _COLUMNS_AT_A_TIME), slice(start, width)
            part[below, at] += (
                (U[:, below].mT @ U[:, at]).mul_(V[:, below].mT @ V[:, at]).mul_(size)
            )
    for start in range(0, k, _COLUMNS_AT_A_TIME):  # it is symmetric
        at, right = slice(start, start + _COLUMNS_AT_A_TIME), slice(start + _COLUMNS_AT_A_TIME, k)
        gram[at, right] = gram[right, at].mT
    return gram
