r"""Directions without training: gradients of single samples are directions already.

Eq. (general_obj) of the paper penalises :math:`||G^\top (x - x^*)||^2`, with gradients of the task
as columns of G, and trains an autoencoder because gradients of mini-batches are too large to keep.
The gradient of a *single* sample is not: for the matrix of a ``Linear`` layer it is
:math:`\delta a^\top`, the gradient at the layer's output times its input, a rank-one matrix. It is
a direction as it stands, with U and V of one column each.

A parameter that is used at several places (a convolution, a recurrent layer, a tied weight) has a
gradient of higher rank, of which the nearest rank-one matrix :math:`\sigma u v^\top` is taken, by
power iteration from the row of largest norm. This is exact for rank one.

**Scale.** With gradients :math:`g_i` of :math:`e^\top outputs`, :math:`e \sim N(0, I)`, directions
:math:`w_i = g_i / \sqrt k` have

.. math:: ||W^\top (x - x^*)||^2 = \frac1k \sum_i (g_i^\top (x - x^*))^2,

the mean squared change of the outputs on k samples, to first order. So the unit of lambda is
that of DCO-KRON (:mod:`avalanche_dco.core.kronecker`), whatever k is.

See :mod:`avalanche_dco.core.directions` for the index legend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_dco.core.autoencoder import broken_gradient
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, Weights, common_dtype, matrix_shape
from avalanche_dco.core.penalty import largest_eigenvalue

_ITERATIONS = 3
"""Power iterations; one is enough for a matrix of rank one."""

_LEAST, _MOST = 1e-30, 1e8
"""Limits of the trace of W^T W: with the largest, the penalty is a projection, and nothing
overflows."""


class SampledDirections:
    """Takes in k gradients and makes k directions of them.

    :param like: the parameters, for their names, shapes, dtypes and devices.
    :param k: number of directions.
    """

    def __init__(self, like: Weights, k: int):
        self._k = k
        self._factors = {}
        dtype = common_dtype(like)
        for name, tensor in like.items():
            U, V = (
                torch.zeros(size, k, dtype=dtype, device=tensor.device)
                for size in matrix_shape(tensor.shape)
            )
            self._factors[name] = Factors(U, V, tensor.shape)
        self._lengths: list[Tensor] = []
        self._energies: list[Tensor] = []
        self._largest: list[Tensor] = []

    @torch.no_grad()
    def add(self, gradient: Weights) -> None:
        """Take in one gradient; only its rank-one parts are kept.

        :param gradient: one tensor per parameter, at least; others are ignored.
        """
        column = len(self._lengths)
        lengths, energies, largest = [], [], []
        for name, f in self._factors.items():
            G = f.matrix(gradient[name])
            unit = torch.linalg.vector_norm(G, ord=torch.inf)
            u, v, length, energy = _nearest(G / unit.clamp(min=torch.finfo(G.dtype).tiny))
            f.U[:, column], f.V[:, column] = u, v
            lengths.append(length.double() * unit.double())
            energies.append(energy.double() * unit.double().square())
            largest.append(unit)
        self._lengths.append(torch.stack(lengths))
        self._energies.append(torch.stack(energies))
        self._largest.append(torch.stack(largest).max())

    def finish(self) -> Sampled:
        """The directions, and what is known about them."""
        lengths, energies = torch.stack(self._lengths, 1), torch.stack(self._energies, 1)  # l x k
        broken = ~torch.isfinite(energies).all(1)
        if broken.any():
            raise broken_gradient(
                name for name, bad in zip(self._factors, broken, strict=True) if bad
            )
        vanishing = torch.finfo(next(iter(self._factors.values())).U.dtype).tiny ** 0.5
        vanished = float((torch.stack(self._largest) <= vanishing).double().mean())
        trace = lengths.square().sum()
        scale = (_MOST / trace.clamp(min=_LEAST)).clamp(max=1 / self._k).sqrt()
        for f, of_columns in zip(self._factors.values(), lengths, strict=True):
            root = (of_columns * scale).sqrt().to(f.U.dtype)
            f.U.mul_(root)
            f.V.mul_(root)
        directions = Directions(self._k, self._factors)
        lost = 1 - trace / energies.sum() if vanished < 1 else trace
        return Sampled(directions, float(lost), vanished)


@dataclass(frozen=True)
class Sampled:
    """Directions that are gradients.

    :param directions: the directions.
    :param lost: the share of the gradients' energy that is not of rank one, and lost.
    :param vanished: the share of gradients that vanish: the squares of all their entries underflow.
    """

    directions: Directions
    lost: float
    vanished: float

    def shares(self) -> Tensor:
        """The shares ``||w_i^T G||^2 / ||G||^2`` of the gradients along each direction.

        The gradients are the directions themselves: with S = W^T W they are
        ``diag(S^2) / tr(S)``.
        """
        S = self.directions.gram()
        return S.square().sum(1) / S.diagonal().sum()

    def like_trained(self) -> Sampled:
        """The same directions, so long that the largest eigenvalue of W^T W is 1.

        So it is, about, if directions are trained: W W^T then is a projection. This is what a
        compression expects.
        """
        S = self.directions.gram()
        scale = largest_eigenvalue(S.mv, S.diagonal()).clamp(min=_LEAST).pow(-0.25)
        factors = {
            name: Factors(f.U * scale, f.V * scale, f.shape, f.start)
            for name, f in self.directions.factors.items()
        }
        return Sampled(Directions(self.directions.k, factors), self.lost, self.vanished)


def _nearest(G: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rank-one matrix nearest to G, as sigma u v^T with unit vectors, and ||G||^2.

    Zeros for zeros. No number is looked at, for which a GPU would have to wait.

    :param G: r x c, its entries at most 1.
    """
    of_rows = G.square().sum(1)
    v = _unit(G.index_select(0, of_rows.argmax().unsqueeze(0)).squeeze(0))
    for _ in range(_ITERATIONS if min(G.shape) > 1 else 1):
        u = _unit(G @ v)
        projected = u @ G
        v = _unit(projected)
    return u, v, torch.linalg.vector_norm(projected), of_rows.sum()


def _unit(vector: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(vector)
    return vector / norm.clamp(min=torch.finfo(norm.dtype).tiny)
