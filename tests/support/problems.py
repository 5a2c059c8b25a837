"""Small random problems, and the slow and obvious form of what the package computes fast."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, matrix_shape

SHAPES: list[dict[str, tuple[int, ...]]] = [
    {"w": (3, 4)},
    {"w1": (5, 7), "w2": (2, 5)},
    {"conv": (4, 3, 2, 2), "bias": (4,), "scale": ()},
    {"wide": (1, 9), "tall": (9, 1), "conv1d": (2, 3, 5), "conv3d": (2, 1, 2, 2, 2)},
]
"""Parameters of small models: matrices, convolutions, vectors and a scalar."""

shapes = st.sampled_from(SHAPES)
seeds = st.integers(0, 10_000)


def weights(shape: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Random float64 weights (or gradients) of the given shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(size, generator=generator, dtype=torch.float64)
        for name, size in shape.items()
    }


def directions(shape: dict[str, tuple[int, ...]], k: int, seed: int) -> Directions:
    """Random float64 directions for parameters of the given shapes."""
    generator = torch.Generator().manual_seed(seed)

    def factor(rows: int) -> Tensor:
        return torch.randn(rows, k, generator=generator, dtype=torch.float64) / 2

    factors = {}
    for name, size in shape.items():
        rows, cols = matrix_shape(torch.Size(size))
        factors[name] = Factors(factor(rows), factor(cols), torch.Size(size))
    return Directions(k, factors)


def flat(x: dict[str, Tensor]) -> Tensor:
    """All of them as one vector of length d."""
    return torch.cat([tensor.reshape(-1) for tensor in x.values()])


def explicit_matrix(of: Directions) -> Tensor:
    """W, d x k, one column per direction: what the package never forms.

    Differentiable with respect to the factors.
    """
    columns = []
    for i in range(of.k):
        parts = []
        for f in of.factors.values():
            rows, cols = f.U.shape[0], f.V.shape[0]
            j = i - f.start
            if 0 <= j < f.U.shape[1]:
                parts.append(torch.outer(f.U[:, j], f.V[:, j]).reshape(-1))
            else:
                parts.append(torch.zeros(rows * cols, dtype=f.U.dtype))
        columns.append(torch.cat(parts))
    return torch.stack(columns, dim=1)


def columns(held):
    """For each compressed task the numbers of its columns."""
    return held.layout.columns(held.targets.device)
