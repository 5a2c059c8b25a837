r"""Gradient projection memory on tensors (Saha, Garg and Roy, ICLR 2021); no Avalanche in here.

A layer that multiplies its input vectors by a matrix forgets nothing about an input :math:`x` if
its change :math:`\Delta W` satisfies :math:`\Delta W x = 0`. So keep an orthonormal basis :math:`M`
of the inputs worth remembering and allow only changes of the form
:math:`\Delta W - \Delta W M M^\top`.

Index legend: g groups (1 unless the convolution is grouped), n input vectors, o outputs per group,
d input dimensions per group (one more with a bias), k basis vectors.

See :mod:`avalanche_dco.core.layers` for layers as matrices.
"""

import torch
from torch import Tensor
from torch.nn import functional


def project_out(matrix: Tensor, basis: Tensor) -> Tensor:
    """Remove from every row what lies in the span of the basis.

    :param matrix: shape (g, o, d).
    :param basis: orthonormal columns (or zero ones), shape (g, d, k).
    """
    return matrix - (matrix @ basis) @ basis.mT


def compact(vectors: Tensor) -> Tensor:
    """At most d vectors with the same second moment, hence the same singular vectors.

    Thousands of patches shrink to as many vectors as they have dimensions. The Gram matrix is
    taken in float64: squaring costs half of the digits, and half of float64's are enough.

    :param vectors: shape (g, n, d).
    :return: float64 vectors of shape (g, min(n, d), d).
    """
    vectors = vectors.double()
    if vectors.shape[1] <= vectors.shape[2]:
        return vectors
    values, directions = torch.linalg.eigh(vectors.mT @ vectors)
    return values.clamp(min=0).sqrt().unsqueeze(2) * directions.mT


def extended_basis(basis: Tensor, vectors: Tensor, threshold: float) -> Tensor:
    """Add the fewest directions with which the basis holds the wanted share of the energy.

    The paper's update of the memory: the singular vectors of what the basis does not hold yet are
    added, largest first, until basis and addition together hold ``threshold`` of the vectors'
    energy (their squared Frobenius norm). Nothing is added if the basis does so already.

    :param basis: orthonormal columns, shape (g, d, k); k = 0 for the first experience.
    :param vectors: shape (g, n, d).
    :param threshold: share of the energy, in (0, 1].
    :return: shape (g, d, k') with k' >= k, in the dtype of ``basis``. Groups that need fewer
        directions than others are filled up with zero columns, which project nothing.
    """
    exact = basis.double()
    # What may be left out is never less than the noise of the arithmetic (and of the precision the
    # basis is kept in), or threshold = 1 would collect directions made of rounding errors.
    precision = torch.finfo(exact.dtype).eps + torch.finfo(basis.dtype).eps ** 2
    left_out = max(1.0 - threshold, basis.shape[1] * precision)
    additions = [_missing(b, v, left_out) for b, v in zip(exact, compact(vectors), strict=True)]
    width = max(addition.shape[1] for addition in additions)
    padded = torch.stack([functional.pad(a, (0, width - a.shape[1])) for a in additions])
    return torch.cat([exact, padded], dim=2).to(basis.dtype)


def _missing(basis: Tensor, vectors: Tensor, left_out: float) -> Tensor:
    """Orthonormal columns (d, j) to add to one group's basis (d, k) for vectors (n, d)."""
    rest = vectors - (vectors @ basis) @ basis.mT
    _, singular, directions = torch.linalg.svd(rest, full_matrices=False)
    # [i]: the energy not held if only the first i of the singular vectors are added
    not_held = singular.square().flip(0).cumsum(0).flip(0)
    wanted = int((not_held > left_out * vectors.square().sum()).sum())
    room = basis.shape[0] - int(basis.any(dim=0).sum())
    chosen = directions[: min(wanted, room)].mT
    # Once more against the old basis, which may come back from float32 storage.
    return torch.linalg.qr(chosen - basis @ (basis.mT @ chosen)).Q
