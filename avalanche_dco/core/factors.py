"""One parameter's share of the directions, and parameters read as matrices.

See :mod:`avalanche_dco.core.directions` for the index legend.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_dco.errors import ModelError

Weights = Mapping[str, Tensor]
"""Tensors by parameter name: weights, gradients, or differences of weights."""


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of the matrix that a parameter of this shape is read as."""
    rows = shape[0] if len(shape) > 0 else 1
    return rows, math.prod(shape[1:])


def common_dtype(tensors: Weights) -> torch.dtype:
    """The precision of directions for these parameters.

    One for all, at least single: codes are sums over all parameters.
    """
    return functools.reduce(
        torch.promote_types, (tensor.dtype for tensor in tensors.values()), torch.float32
    )


def bytes_of_directions(like: Weights, k: int, numbers: int = 0) -> int:
    """Memory of ``k`` directions and of further numbers in their precision."""
    of_one = sum(sum(matrix_shape(tensor.shape)) for tensor in like.values())
    return (k * of_one + numbers) * common_dtype(like).itemsize


@dataclass
class Factors:
    """One parameter's share of the directions ``start`` to ``start + width``.

    Outside that range the parameter has no part in the directions. So the head that task 7 added
    costs nothing in the directions of tasks 1 to 6.
    """

    U: Tensor  # r x width
    V: Tensor  # c x width
    shape: torch.Size  # of the parameter
    start: int = 0

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.U.shape[1])

    def matrix(self, tensor: Tensor) -> Tensor:
        """The parameter (or its gradient) as r x c matrix, a view where that is possible."""
        return tensor.detach().reshape(matrix_shape(self.shape)).to(self.U.dtype)

    def encode(self, tensor: Tensor) -> Tensor:
        """Its part of the codes, diag(U^T X V), one per column.

        Never forms the matrix whose diagonal this is.
        """
        return (self.matrix(tensor) @ self.V).mul_(self.U).sum(0)

    def decode(self, z: Tensor) -> Tensor:
        """(U * z) V^T, of the parameter's shape.

        :param z: one code per column.
        """
        return ((self.U * z) @ self.V.T).reshape(self.shape)

    def adapted_to(self, name: str, parameter: Tensor) -> Factors:
        """The same directions for a parameter that has grown or moved to another device.

        New rows and columns are zero.
        """
        shape = parameter.shape
        if parameter.device != self.U.device:
            moved = (self.U.to(parameter.device), self.V.to(parameter.device))
            return Factors(*moved, self.shape, self.start).adapted_to(name, parameter)
        if shape == self.shape:
            return self
        require_growth(name, self.shape, shape)
        width = self.U.shape[1]
        inner_old, inner_new = self.shape[1:], shape[1:]
        U = self.U.new_zeros(shape[0], width)
        U[: self.U.shape[0]] = self.U
        V = self.V.new_zeros(*inner_new, width)
        V[tuple(slice(size) for size in inner_old)] = self.V.reshape(*inner_old, width)
        return Factors(U, V.reshape(-1, width), shape, self.start)

    def joined(self, other: Factors) -> Factors:
        """These columns and, behind them, those of ``other``; a gap between them is zeros."""
        gap = other.start - self.columns.stop

        def side_by_side(a: Tensor, b: Tensor) -> Tensor:
            return torch.cat([a, a.new_zeros(a.shape[0], gap), b.to(a)], dim=1)

        return Factors(
            side_by_side(self.U, other.U), side_by_side(self.V, other.V), self.shape, self.start
        )


def require_growth(name: str, before: Sequence[int], now: Sequence[int]) -> None:
    """Raise unless a parameter has kept its shape or grown."""
    if len(before) != len(now) or any(map(operator.lt, now, before)):
        raise ModelError(
            f"Parameter '{name}' had shape {tuple(before)} when its prohibited directions were "
            f"found and now has {tuple(now)}. Directions can follow a parameter that grows (as "
            "IncrementalClassifier does), not one that shrinks or is reshaped. Keep the model as "
            "it was, or leave this parameter out with parameter_filter."
        )
