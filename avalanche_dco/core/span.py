r"""How much of a gradient lies in the span of prohibited directions.

With the directions as columns of W (d x k) and P the orthogonal projection onto their span, the
share of a gradient's energy that they prohibit is

.. math:: \frac{||P g||^2}{||g||^2} = \frac{c^T S^+ c}{||g||^2}, \qquad
          c = W^T g, \quad S = W^T W, \quad P = W S^+ W^T.

Only the k codes and the k x k Gram matrix are needed; W is never formed.

**When S is singular.** Directions repeat and overlap, and there may be more of them than weights.
The columns are scaled to length one, which changes S but not the span, and :math:`S^+ c` is found
by iterated Tikhonov regularisation: one Cholesky factorisation of :math:`S + \tau I`, then
:math:`\alpha \leftarrow (S + \tau I)^{-1} (c + \tau \alpha)` a few times from 0. After m rounds an
eigenvector of S with eigenvalue :math:`\lambda` counts with :math:`1 - (\tau/(\lambda + \tau))^m`
of its energy: all of it for :math:`\lambda \gg \tau`, nothing for :math:`\lambda \ll \tau`, where
rounding decides. An eigendecomposition with a cut-off gives the same for much more work.
Everything is computed in float64, whatever precision the directions are kept in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, Weights

CUT_OFF = 1e-10
"""tau: a direction that leaves the span of the others by less than about the root of this, as a
share of its length, adds nothing to the span."""

_ROUNDS = 4


class DirectionSpan:
    """The span of directions, prepared once to be asked about many gradients.

    Keeps a k x k matrix in float64 (with uncoupled layers one per parameter), and the directions
    themselves by reference.

    :param directions: the prohibited directions; they must not be changed afterwards.
    :param couple_layers: whether a direction is one, over all parameters, or its part in every
        parameter is one by itself, as for the penalty.
    """

    def __init__(self, directions: Directions, *, couple_layers: bool = True):
        uncoupled = [directions.of_parameter(name) for name in directions.factors]
        # Parts of different parameters are orthogonal, so that shares in their spans add up.
        self._blocks = [_Block(part) for part in ([directions] if couple_layers else uncoupled)]

    def shares(self, gradients: Iterable[Weights]) -> Tensor:
        """Each gradient's share of energy in the span, between 0 and 1.

        :param gradients: tensors by parameter name. A parameter that has no part in the
            directions counts in ``||g||^2``; one that is missing counts as zero. A gradient of
            zero has a share of 0, one that is not finite has NaN.
        """
        in_double = [_in_double(block.directions) for block in self._blocks]
        codes: list[list[Tensor]] = [[] for _ in self._blocks]
        lengths = []
        for gradient in gradients:
            for directions, of_block in zip(in_double, codes, strict=True):
                of_block.append(directions.encode(_completed(gradient, directions)))
            lengths.append(energy(gradient))
        device = self._blocks[0].directions.device
        if not lengths:
            return torch.zeros(0, dtype=torch.float64, device=device)
        energies = torch.stack([length.to(device) for length in lengths])
        inside = torch.zeros_like(energies)
        for block, of_block in zip(self._blocks, codes, strict=True):
            inside += block.inside(torch.stack(of_block, dim=1))
        # 0/0 is "nothing of it is prohibited"; only rounding takes the quotient out of [0, 1].
        shares = torch.where(energies == 0, 0.0, inside / energies).clamp(0.0, 1.0)
        return torch.where(energies.isfinite(), shares, torch.nan)


class _Block:
    """The span of some directions: their scaled Gram matrix, factorised."""

    def __init__(self, directions: Directions):
        self.directions = directions
        gram = _in_double(directions).gram()
        lengths = gram.diagonal().sqrt()
        # A direction of length zero spans nothing, and its codes are zero too.
        self._scale = torch.where(lengths > 0, 1 / lengths, torch.zeros_like(lengths))
        gram *= self._scale
        gram *= self._scale[:, None]
        gram.diagonal().add_(CUT_OFF)
        self._cholesky = torch.linalg.cholesky(gram)

    def inside(self, codes: Tensor) -> Tensor:
        """Energies in the span (m), from codes (k x m)."""
        codes = codes * self._scale[:, None]
        solution = torch.zeros_like(codes)
        for _ in range(_ROUNDS):
            solution = torch.cholesky_solve(codes + CUT_OFF * solution, self._cholesky)
        return (codes * solution).sum(0)


def energy(gradient: Weights) -> Tensor:
    """||g||^2 over all parameters, in float64."""
    lengths = [
        torch.linalg.vector_norm(part.detach(), dtype=torch.float64) for part in gradient.values()
    ]
    if not lengths:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([length.to(lengths[0].device) for length in lengths]).square().sum()


class Shares(Protocol):
    """Computes which share of a gradient is prohibited."""

    def shares(self, gradients: Iterable[Weights]) -> Tensor:
        """Each gradient's share; see :meth:`DirectionSpan.shares`."""


def mean_share(span: Shares | None, gradients: Iterable[Weights]) -> float:
    """The mean over gradients of their shares; every gradient counts the same.

    :param span: the prohibited directions; None where there are none yet, so that
        every share is 0 and no gradient is computed.
    """
    return 0.0 if span is None else span.shares(gradients).mean().item()


def _in_double(directions: Directions) -> Directions:
    return Directions(
        directions.k,
        {
            name: Factors(f.U.detach().double(), f.V.detach().double(), f.shape, f.start)
            for name, f in directions.factors.items()
        },
    )


def _completed(gradient: Weights, directions: Directions) -> Weights:
    """The gradient with zeros for the directions' parameters that it does not have."""
    return {
        name: gradient[name] if name in gradient else f.U.new_zeros(f.shape)
        for name, f in directions.factors.items()
    }
