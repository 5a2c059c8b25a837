r"""Directions of one parameter that are pairs of few vectors, coded without repeating them.

Eigendirections (:mod:`avalanche_dco.core.eigendirections`) are pairs of p columns of P (r x p) and
q columns of Q (c x q): :math:`w_i = s_i \, p_{a(i)} q_{b(i)}^\top`. With :math:`Z_{ab}` the sum of
:math:`s_i z_i` over the directions i that are the pair (a, b),

.. math:: ENC(X)_i = s_i \, (P^\top X Q)_{a(i) b(i)}, \qquad DEC(z) = P Z Q^\top,

in ``p c (r + q)`` multiplications instead of ``r c k``. Tasks have columns of their own, and so a
block of their own: the pairs of one task with the columns of another are never multiplied.

See :mod:`avalanche_dco.core.directions` for the index legend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_dco.core.factors import Factors

_SHORTEST = 128
"""Directions of a block, at least: a product costs more than its multiplications."""
_WORTH = 2
"""How many times fewer multiplications make pairs worth while."""


@dataclass
class _Block:
    """Directions that share columns with no others.

    :param P: r x p.
    :param Q: c x q.
    :param places: a(i) q + b(i), where the directions are in Z, read row by row.
    :param scales: s.
    """

    P: Tensor
    Q: Tensor
    places: Tensor
    scales: Tensor

    def encode(self, X: Tensor) -> Tensor:
        return torch.linalg.multi_dot([self.P.T, X, self.Q]).take(self.places).mul_(self.scales)

    def decode(self, z: Tensor) -> Tensor:
        Z = z.new_zeros(self.P.shape[1] * self.Q.shape[1])
        Z.index_add_(0, self.places, z * self.scales)
        return torch.linalg.multi_dot([self.P, Z.view(self.P.shape[1], -1), self.Q.T])

    @property
    def multiplications(self) -> int:
        (r, p), (c, q) = self.P.shape, self.Q.shape
        return min(p * c * (r + q), q * r * (c + p))


class PairedFactors(Factors):
    """The same factors, which encode and decode by pairs; see the module.

    :param nonzero: the directions that the blocks have, in their order; all others are zero here.
    """

    def __init__(self, factors: Factors, blocks: list[_Block], nonzero: Tensor):
        super().__init__(factors.U, factors.V, factors.shape, factors.start)
        self._blocks, self._nonzero = blocks, nonzero

    def encode(self, tensor: Tensor) -> Tensor:
        X = self.matrix(tensor)
        z = X.new_zeros(self.U.shape[1])
        z[self._nonzero] = torch.cat([block.encode(X) for block in self._blocks])
        return z

    def decode(self, z: Tensor) -> Tensor:
        parts = z[self._nonzero].split([len(block.places) for block in self._blocks])
        first, *others = (b.decode(part) for b, part in zip(self._blocks, parts, strict=True))
        for other in others:
            first += other
        return first.reshape(self.shape)


@torch.no_grad()
def in_pairs(f: Factors) -> Factors:
    """Factors that encode and decode by pairs, or the same ones where that would not pay."""
    nonzero = (f.U.any(0) & f.V.any(0)).nonzero().squeeze(1)
    if not len(nonzero):
        return f
    blocks = list(_blocks(f.U[:, nonzero], f.V[:, nonzero]))
    if _WORTH * sum(block.multiplications for block in blocks) > f.shape.numel() * f.U.shape[1]:
        return f
    return PairedFactors(f, blocks, nonzero)


def _blocks(U: Tensor, V: Tensor) -> Iterator[_Block]:
    (of_row, u), (of_column, v) = _equal_columns(U), _equal_columns(V)
    # A block ends where no column before is equal to one behind.
    reach = torch.maximum(_last_equal(of_row), _last_equal(of_column)).cummax(0).values
    ends = (reach == torch.arange(len(reach), device=reach.device)).nonzero().squeeze(1) + 1
    start = 0
    for end in ends.tolist():
        if end - start < _SHORTEST and end < len(reach):
            continue
        rows, a = of_row[start:end].unique(return_inverse=True)
        columns, b = of_column[start:end].unique(return_inverse=True)
        yield _Block(
            (U[:, rows] / u[rows]).to(U),
            (V[:, columns] / v[columns]).to(V),
            a * len(columns) + b,
            (u[start:end] * v[start:end]).to(U),
        )
        start = end


def _equal_columns(X: Tensor) -> tuple[Tensor, Tensor]:
    """For each column the first one that has its direction, and its length in double precision.

    Columns of one direction have one product with a random vector, up to rounding. Others may have
    the same by chance, so the columns themselves are compared with the one that was found.
    """
    lengths = torch.linalg.vector_norm(X, dim=0, dtype=torch.float64)  # does not underflow
    unit = X / lengths
    tolerance = 8 * torch.finfo(X.dtype).eps
    generator = torch.Generator("cpu").manual_seed(0)  # the user's random numbers stay untouched
    vector = torch.randn(len(X), generator=generator, dtype=torch.float64, device="cpu")
    products, order = (vector.to(unit.device) @ unit).sort()
    group = torch.empty_like(order)
    group[order] = (products.diff(prepend=products[:1]) > tolerance).cumsum(0)
    itself = torch.arange(X.shape[1], device=X.device)
    first = torch.full_like(itself, len(itself)).scatter_reduce(0, group, itself, "amin")[group]
    equal = (unit - unit[:, first]).abs_().amax(0) <= tolerance
    return torch.where(equal, first, itself), lengths


def _last_equal(first: Tensor) -> Tensor:
    """For each column the last one with the same first one."""
    itself = torch.arange(len(first), device=first.device)
    return itself.scatter_reduce(0, first, itself, "amax")[first]
