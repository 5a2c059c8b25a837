r"""Gradient projection memory on tensors (Saha, Garg and Roy, ICLR 2021); no Avalanche in here.

A layer that multiplies its input vectors by a matrix forgets nothing about an input :math:`x` if
its change :math:`\Delta W` satisfies :math:`\Delta W x = 0`. So keep an orthonormal basis :math:`M`
of the inputs worth remembering and allow only changes of the form
:math:`\Delta W - \Delta W M M^\top`.

Index legend: g groups (1 unless the convolution is grouped), n input vectors, o outputs per group,
d input dimensions per group (one more with a bias), k basis vectors.

A bias is the weight of a constant input 1: the constant is appended to every input vector and the
bias to the matrix as its last column, so that ``W x + b`` is protected as a whole.
"""

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

ProjectableLayer: TypeAlias = nn.Linear | nn.Conv2d


def input_vectors(layer: ProjectableLayer, inputs: Tensor) -> Tensor:
    """The vectors that ``layer`` multiplies by its matrix when it is called with ``inputs``.

    :param layer: a ``Linear``, or a ``Conv2d`` with any stride, padding, dilation and groups.
    :param inputs: what the layer is called with.
    :return: vectors of shape (g, n, d): inputs of a ``Linear``, patches of a ``Conv2d``; with a
        constant 1 as their last entry if the layer has a bias.
    """
    if isinstance(layer, nn.Conv2d):
        vectors = unfolded_patches(layer, inputs).permute(1, 0, 3, 2).flatten(1, 2)
    else:
        vectors = inputs.reshape(1, -1, layer.in_features)
    return vectors if layer.bias is None else functional.pad(vectors, (0, 1), value=1.0)


def unfolded_patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """The patches a convolution looks at, in the order of its output positions.

    :param layer: the convolution.
    :param images: its input, (batch, channels, height, width) or without the batch.
    :return: patches of shape (batch, g, channels per group * kernel height * kernel width,
        output positions); the third index runs like the flattened weight of one output.
    """
    images = images if images.dim() == 4 else images.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = functional.unfold(
        functional.pad(images, _padding(layer), mode=mode),
        layer.kernel_size,
        dilation=layer.dilation,
        stride=layer.stride,
    )
    return patches.unflatten(1, (layer.groups, -1))


def _padding(layer: nn.Conv2d) -> list[int]:
    """Left, right, top, bottom, as ``functional.pad`` wants them."""
    sides: list[int] = []
    for axis in (1, 0):
        if layer.padding == "valid":
            before, after = 0, 0
        elif layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            before, after = total // 2, total - total // 2
        else:
            before = after = int(layer.padding[axis])
        sides += [before, after]
    return sides


def as_matrix(layer: ProjectableLayer, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Write a weight and a bias (or their gradients) as the matrix that multiplies the inputs.

    :param layer: the layer they belong to.
    :param weight: a tensor shaped like the layer's weight.
    :param bias: a tensor shaped like its bias, or None if it has none.
    :return: matrix of shape (g, o, d).
    """
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    if bias is None:
        return matrix
    return torch.cat([matrix, bias.reshape(groups, -1, 1)], dim=2)


def write_matrix(matrix: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Undo :func:`as_matrix`, in place.

    :param matrix: matrix of shape (g, o, d).
    :param weight: the tensor that receives all columns, or all but the last if there is a bias.
    :param bias: the tensor that receives the last column.
    """
    if bias is None:
        weight.copy_(matrix.reshape(weight.shape))
    else:
        weight.copy_(matrix[:, :, :-1].reshape(weight.shape))
        bias.copy_(matrix[:, :, -1].reshape(bias.shape))


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
