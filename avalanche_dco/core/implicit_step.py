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
``W^T x = t``. If layers are not coupled, there is one such system per parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights
from avalanche_dco.core.penalty import Penalty, largest_eigenvalue, shortening

_COLUMNS_AT_A_TIME = 512
"""So that the products for the Gram matrix need little memory beside it."""


@dataclass
class _System:
    """``(shift I + sqrt(w) W^T D W sqrt(w)) y = r``, factored.

    :param columns: the codes that it is about.
    :param factor: its Cholesky factor, lower triangular.
    :param shift: 1 / 2 lambda, or more where that is below what can be resolved.
    """

    columns: slice
    factor: Tensor
    shift: Tensor

    def solve(self, r: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(self.factor, r.unsqueeze(1), upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True).squeeze(1)


class ImplicitStep:
    """The step of one penalty with one strength and one step size per parameter.

    :param penalty: the penalty.
    :param strength: lambda.
    :param sizes: the positive step sizes of the parameters that move; all others stay.
    """

    def __init__(self, penalty: Penalty, strength: float, sizes: Mapping[str, float]):
        self.penalty = penalty
        self.strength = strength
        self.directions, weights = penalty.coded()
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
        codes, left = torch.zeros_like(residual), residual.to(torch.float64, copy=True)
        for system in self._systems:
            at, roots = system.columns, self._roots[system.columns]
            y = system.solve(roots * residual[at])
            codes[at] = roots * y
            left[at] = y.double() * system.shift / roots
        gradient = self.directions.decode(codes, self.sizes)
        scale = shortening(list(gradient.values()), max_grad_norm)
        for name, size in self.sizes.items():
            x[name].sub_((gradient[name] * (scale * size)).to(x[name].dtype))
        share = scale if isinstance(scale, float) else scale.double()
        after = torch.lerp(residual.double(), left, share)
        weighted = self._roots.square() * after
        return self.strength * (weighted @ after + self.penalty.constant)

    def _factored(self, names: list[str]) -> _System:
        """The system of some parameters, whose codes are summed, in double precision."""
        factors = self.directions.factors
        columns = slice(0, self.directions.k)
        if not self.penalty.couple_layers:
            columns = factors[names[0]].columns
        matrix = _gram(self.directions, {name: self.sizes[name] for name in names}, columns)
        roots = self._roots[columns].double()
        matrix.mul_(roots).mul_(roots.unsqueeze(1))
        # Codes and steps are rounded, and a system that is nearly singular (directions that repeat)
        # would amplify that without bound.
        least = torch.finfo(self._roots.dtype).eps ** (2 / 3)
        largest = largest_eigenvalue(matrix.mv, roots)
        shift = (largest * least).clamp(min=0.5 / self.strength)
        matrix.diagonal().add_(shift)
        return _System(columns, torch.linalg.cholesky(matrix).to(self._roots.dtype), shift)


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
