r"""Projection methods on tensors: GPM, SGP and OWM; no Avalanche in here.

A layer that multiplies its input vectors by a matrix forgets nothing about an input :math:`x` if
its change :math:`\Delta W` satisfies :math:`\Delta W x = 0`. So keep an orthonormal basis :math:`M`
of the inputs worth remembering and allow only changes of the form
:math:`\Delta W - \Delta W M M^\top` (GPM: Saha, Garg and Roy, ICLR 2021). SGP (Saha and Roy, AAAI
2023) gives each basis vector an importance :math:`\lambda_i` between 0 and 1 and allows
:math:`\Delta W - \Delta W M \Lambda M^\top`. OWM (Zeng et al., 2019) keeps no basis, but a matrix
:math:`P` that is small along earlier inputs, and allows :math:`\Delta W P`.

Index legend: g groups (1 unless the convolution is grouped), n input vectors, o outputs per group,
d input dimensions per group (one more with a bias), k basis vectors.

See :mod:`avalanche_dco.core.layers` for layers as matrices.
"""

import torch
from torch import Tensor
from torch.nn import functional


def project_out(matrix: Tensor, basis: Tensor) -> Tensor:
    r"""Remove from every row what lies in the span of the basis, or a share of it.

    :param matrix: shape (g, o, d).
    :param basis: orthogonal columns, shape (g, d, k). One of norm 1 takes away all that lies along
        it, one of norm :math:`\sqrt{\lambda_i}` the share :math:`\lambda_i`.
    """
    return matrix - (matrix @ basis) @ basis.mT


def complement(basis: Tensor) -> Tensor:
    """What :func:`project_out` multiplies by: less work where a basis has more than d / 2 columns.

    :param basis: shape (g, d, k).
    :return: shape (g, d, d), in the dtype of ``basis``.
    """
    exact = basis.double()
    identity = torch.eye(basis.shape[1], dtype=exact.dtype, device=exact.device)
    return project_out(identity, exact).to(basis.dtype)


def basis_importances(basis: Tensor, vectors: Tensor, alpha: float) -> Tensor:
    r"""SGP's importances of basis vectors for the inputs of one experience.

    .. math:: \lambda_i = \frac{(\alpha + 1) \sigma_i}{\alpha \sigma_i + \max_j \sigma_j}

    For a vector that these inputs have added to the basis, :math:`\sigma_i` is its singular value;
    for an older one the paper's surrogate of it. Both are the norm of the inputs' coordinates
    along the vector.

    :param basis: orthonormal columns (or zero ones), shape (g, d, k).
    :param vectors: shape (g, n, d).
    :param alpha: at least 0; the larger, the nearer are all importances to 1, which is GPM.
    :return: float64, shape (g, 1, k).
    """
    sigma = (vectors.double() @ basis.double()).norm(dim=1, keepdim=True)
    largest = functional.pad(sigma, (0, 1)).amax(dim=2, keepdim=True)  # a basis may be empty
    return (alpha + 1) * sigma / (alpha * sigma + largest).clamp(min=torch.finfo(sigma.dtype).tiny)


def shrunk_projector(projector: Tensor, moment: Tensor) -> Tensor:
    r"""OWM's recursive update of its projector, for all inputs at once.

    One input :math:`x` with the constant :math:`\alpha` makes :math:`P` into

    .. math:: P - k x^\top P, \qquad k = P x / (\alpha + x^\top P x)

    Repeated for several inputs, each with its own :math:`\alpha`, that is
    :math:`(P^{-1} + S)^{-1}` with :math:`S = \sum x x^\top / \alpha`, whatever their order. With
    :math:`P = R R^\top` it is :math:`R (I + R^\top S R)^{-1} R^\top`: nothing is subtracted, so no
    eigenvalue becomes negative, however small it is.

    :param projector: shape (g, d, d), symmetric.
    :param moment: :math:`S`, float64, shape (g, d, d).
    :return: float64, shape (g, d, d).
    """
    values, directions = torch.linalg.eigh(projector.double())
    root = directions * values.clamp(min=0).sqrt().unsqueeze(1)
    values, directions = torch.linalg.eigh(root.mT @ moment @ root)
    root = root @ directions * (1 + values.clamp(min=0)).rsqrt().unsqueeze(1)
    return root @ root.mT


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
