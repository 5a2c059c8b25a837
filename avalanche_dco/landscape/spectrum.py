r"""Eigenvectors of :math:`G G^T` from a stream of gradients, by the method that fits in memory.

Index legend: d parameters, n gradients, k eigenvectors kept, l columns of a sketch. G is d x n
as in the paper; blocks of gradients come as rows (b x d). All sums are in float64: the
eigenvalues of gradients after convergence span more orders of magnitude than float32 holds.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from avalanche_dco.errors import GradientError, SettingError

Method = Literal["auto", "outer", "gram", "randomized"]

_BLOCK = 256  # gradients gathered before a matrix product: large enough for full GEMM speed
_FLOAT64 = 8  # bytes


@dataclass(frozen=True)
class GradientSpectrum:
    """Mean and leading eigenvectors of the gradients after convergence; indices count from 1.

    >>> import torch
    >>> from avalanche_dco.landscape import gradient_spectrum
    >>> spectrum = gradient_spectrum(torch.diag(torch.tensor([3.0, 2.0, 1.0])), size=3, count=3)
    >>> spectrum.eigenvalues.round(), spectrum.subspace(3, width=2).shape
    (tensor([9., 4., 1.], dtype=torch.float64), torch.Size([3, 2]))

    :param eigenvalues: of :math:`G G^T`, shape (k,), descending.
    :param eigenvectors: shape (d, k), orthonormal columns in the same order.
    :param mean: the averaged gradient, shape (d,).
    :param count: the number n of gradients.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor
    mean: Tensor
    count: int

    def vector(self, index: int) -> Tensor:
        """:math:`v_i`, shape (d,); a lower index belongs to a larger eigenvalue.

        :param index: i, from 1 to k.
        """
        return self.eigenvectors[:, self._checked(index) - 1]

    def subspace(self, last: int, width: int = 50) -> Tensor:
        r""":math:`V_s = [v_{s-w+1}, \dots, v_s]`, shape (d, w).

        :param last: s, the highest index in the subspace.
        :param width: w, the number of consecutive eigenvectors; 50 in the paper.
        """
        if not 1 <= width <= last:
            raise SettingError(
                f"subspace(last={last}, width={width}) would begin before v_1; use last >= width."
            )
        return self.eigenvectors[:, self._checked(last) - width : last]

    def _checked(self, index: int) -> int:
        if not 1 <= index <= self.eigenvalues.numel():
            raise SettingError(
                f"There is no eigenvector {index}: {self.eigenvalues.numel()} were kept of "
                f"{self.count} gradients. Take more steps (the rank of G G^T is at most their "
                "number), raise `top`, or ask for a lower index."
            )
        return index


class _Outer:
    """Adds up the d x d matrix itself; the gradients are not kept. For d <= n."""

    def __init__(self, size: int, device: torch.device):
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, block: Tensor) -> None:
        self.matrix.addmm_(block.T, block)

    def eigen(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.matrix)
        return values.flip(0), vectors.flip(1)


class _Gram:
    r"""Eigenvectors through :math:`G^T G` (n x n): :math:`v = G a / \sqrt{\lambda}`. For d > n."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.blocks: list[Tensor] = []  # as they came: the widening to float64 is repeated below

    def add(self, block: Tensor) -> None:
        self.blocks.append(block.to(self.dtype))

    def eigen(self) -> tuple[Tensor, Tensor]:
        rows = [
            torch.cat([left.double() @ right.double().T for right in self.blocks], dim=1)
            for left in self.blocks
        ]
        values, coefficients = torch.linalg.eigh(torch.cat(rows))
        values, coefficients = values.flip(0), coefficients.flip(1)
        rank = _numerical_rank(values)
        coefficients = coefficients[:, :rank] / values[:rank].sqrt()
        sizes = [len(block) for block in self.blocks]
        vectors = values.new_zeros(self.blocks[0].shape[1], rank)
        for block, part in zip(self.blocks, coefficients.split(sizes), strict=True):
            vectors.addmm_(block.double().T, part)
        # Small eigenvalues cost orthogonality (an error of eps * lambda_1 / lambda_i); QR gives it
        # back in the order of the eigenvalues, so that the leading vectors stay as they are.
        orthonormal, triangle = torch.linalg.qr(vectors)
        return values[:rank], orthonormal * triangle.diagonal().sign()


class _Randomized:
    """One-pass Nyström approximation of the leading part; memory d x l, whatever n.

    Tropp, Yurtsever, Udell and Cevher (2017), "Fixed-rank approximation of a positive-semidefinite
    matrix from streaming data". Exact if the rank is at most l; otherwise as good as the
    eigenvalues beyond l are small.
    """

    def __init__(self, size: int, columns: int, seed: int, device: torch.device):
        generator = torch.Generator().manual_seed(seed)
        gaussian = torch.randn(size, columns, generator=generator, dtype=torch.float64)
        self.test = torch.linalg.qr(gaussian.to(device))[0]
        self.sketch = torch.zeros_like(self.test)

    def add(self, block: Tensor) -> None:
        self.sketch.addmm_(block.T, block @ self.test)

    def eigen(self) -> tuple[Tensor, Tensor]:
        # A small multiple of the identity makes the Cholesky factor exist; it is taken off again.
        shift = math.sqrt(len(self.test)) * torch.finfo(torch.float64).eps * self.sketch.norm()
        if shift == 0:
            return self.sketch.new_zeros(0), self.sketch[:, :0]
        shifted = self.sketch + shift * self.test
        core = self.test.T @ shifted
        factor = torch.linalg.cholesky((core + core.T) / 2)
        root = torch.linalg.solve_triangular(factor, shifted.T, upper=False).T
        vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
        return (singular.square() - shift).clamp_min(0), vectors


def _numerical_rank(values: Tensor) -> int:
    if values.numel() == 0:
        return 0
    threshold = values.numel() * torch.finfo(values.dtype).eps * values.max().clamp_min(0)
    return int((values > threshold).sum())


def _accumulator(
    method: Method, size: int, count: int, top: int | None, seed: int, limit: int, sample: Tensor
) -> _Outer | _Gram | _Randomized:
    if method == "auto":
        exact: Method = "outer" if size <= count else "gram"
        kept = size * size * _FLOAT64
        if exact == "gram":
            kept = count * size * sample.element_size() + count * count * _FLOAT64
        method = exact if kept <= limit else "randomized"
    if method == "outer":
        return _Outer(size, sample.device)
    if method == "gram":
        return _Gram(sample.dtype)
    if method == "randomized":
        if top is None:
            raise SettingError(
                f"method='randomized' (chosen by 'auto' when the exact ways for d={size}, "
                f"n={count} need more than memory_limit={limit:,} bytes) approximates the "
                "leading eigenvectors only: say how many with top=, e.g. top=400."
            )
        return _Randomized(size, min(2 * top, size), seed, sample.device)
    raise SettingError(
        f"method={method!r} is unknown; use 'auto', 'outer' (d x d), 'gram' (n x n) or "
        "'randomized' (d x 2 top)."
    )


def _blocks(gradients: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    block: list[Tensor] = []
    for gradient in gradients:
        if gradient.shape != (size,):
            raise SettingError(
                f"A gradient has shape {tuple(gradient.shape)} instead of {(size,)}; give every "
                "one as a vector, e.g. FlatParameters(model).gradient()."
            )
        block.append(gradient)
        if len(block) == _BLOCK:
            yield torch.stack(block)
            block = []
    if block:
        yield torch.stack(block)


def gradient_spectrum(
    gradients: Iterable[Tensor],
    *,
    size: int,
    count: int,
    top: int | None = None,
    method: Method = "auto",
    memory_limit: int = 2**31,
    seed: int = 0,
) -> GradientSpectrum:
    r"""Averaged gradient and eigenvectors of :math:`G G^T`, the largest eigenvalue first.

    The gradients are read once, in blocks. ``"outer"`` adds up the d x d matrix and keeps no
    gradient; ``"gram"`` keeps them (n x d) and needs the eigenvectors of an n x n matrix only;
    ``"randomized"`` keeps a sketch of d x 2 top numbers. ``"auto"`` takes ``"outer"`` for d <= n
    and ``"gram"`` for d > n as long as ``memory_limit`` allows it, and ``"randomized"`` beyond.
    Eigenvectors without a numerically positive eigenvalue are arbitrary and are not returned.

    >>> import torch
    >>> from avalanche_dco.landscape import gradient_spectrum
    >>> gradients = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 1.0])]
    >>> gradient_spectrum(gradients, size=2, count=2).eigenvalues
    tensor([9., 1.], dtype=torch.float64)

    :param gradients: the stream, each of shape (d,).
    :param size: d.
    :param count: n, the number of gradients the stream will give.
    :param top: how many eigenvectors to keep; all of the numerical rank if None.
    :param method: ``"auto"``, ``"outer"``, ``"gram"`` or ``"randomized"``.
    :param memory_limit: bytes that ``"auto"`` may spend on an exact method.
    :param seed: seed of the randomized method's test matrix.
    """
    accumulator, total, seen = None, torch.zeros(()), 0
    for block in _blocks(gradients, size):
        if not block.isfinite().all():
            raise GradientError(
                f"One of the gradients {seen + 1} to {seen + len(block)} is infinite or not a "
                "number, so it has no direction. Lower the learning rate."
            )
        if accumulator is None:
            accumulator = _accumulator(method, size, count, top, seed, memory_limit, block)
            total = torch.zeros(size, dtype=torch.float64, device=block.device)
        wide = block.double()
        accumulator.add(wide)
        total += wide.sum(0)
        seen += len(block)
    if accumulator is None or seen != count:
        raise SettingError(
            f"count={count} gradients were announced, but {seen} came. The method is chosen by "
            "their number, so give the number that the stream really has (at least 1)."
        )
    values, vectors = accumulator.eigen()
    kept = _numerical_rank(values) if top is None else min(top, _numerical_rank(values))
    return GradientSpectrum(values[:kept], vectors[:, :kept].contiguous(), total / seen, seen)
