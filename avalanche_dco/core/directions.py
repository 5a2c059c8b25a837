r"""Prohibited directions: k vectors in weight space, each a rank-one matrix per parameter.

Index legend, used in every shape below::

    k   directions                      l   parameters ("layers" in the paper)
    r   rows of a parameter's matrix    c   columns of a parameter's matrix
    d   all weights together, d = sum_l r_l * c_l

Direction ``i`` is :math:`w_i = \{ u_i^l (v_i^l)^\top \}_l`, so that ``k`` directions are held as
``U_l`` (r x k) and ``V_l`` (c x k) instead of one ``d x k`` matrix ``W``. ``W`` is never formed.

A parameter of any shape is read as a matrix: its first dimension gives the rows, all the others
together the columns (the paper's ``o x iwh`` for convolutions); a vector is one column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.core.checked import entries, is_count, is_floating, is_shape, require
from avalanche_dco.core.factors import Factors, Weights, common_dtype, matrix_shape
from avalanche_dco.errors import ModelError


class Directions:
    """A set of ``k`` directions with the algebra the rest of the package is written in.

    :param factors: the factors of every parameter that has a part in them.
    """

    def __init__(self, k: int, factors: dict[str, Factors]):
        self.k = k
        self.factors = factors

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and strings from which :meth:`from_state` makes the same directions."""
        return {
            "k": self.k,
            "factors": {
                name: {"U": f.U, "V": f.V, "shape": list(f.shape), "start": f.start}
                for name, f in self.factors.items()
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Directions:
        """The directions that :meth:`state` was taken of; anything else is a StateError."""
        k, parts = entries(state, ("k", "factors"), "the directions")
        require(
            is_count(k) and isinstance(parts, dict) and bool(parts),
            "the directions have to be a number k and factors by parameter",
        )
        factors = {}
        for name, part in parts.items():
            U, V, shape, start = entries(part, ("U", "V", "shape", "start"), f"{name!r}")
            require(is_shape(shape) and is_count(start), f"{name!r} has no valid shape or start")
            rows, columns = matrix_shape(torch.Size(shape))
            require(
                is_floating(U, [rows, None])
                and is_floating(V, [columns, U.shape[1]])
                and U.dtype == V.dtype
                and start + U.shape[1] <= k,
                f"the factors of {name!r} are not two matrices for a parameter of shape {shape}",
            )
            factors[name] = Factors(U, V, torch.Size(shape), start)
        return cls(k, factors)

    @classmethod
    def random(cls, like: Weights, k: int) -> Directions:
        """Small random directions to start an autoencoder from.

        U is uniform in ``+-1/sqrt(k r)`` and V in ``+-1/sqrt(c)``: then all ``k`` directions
        together have about the length of one unit vector per parameter, and the autoencoder
        starts near zero instead of first having to unlearn what it begins with.
        """
        dtype = common_dtype(like)

        def uniform(tensor: Tensor, rows: int, bound: float) -> Tensor:
            values = torch.empty(rows, k, dtype=dtype, device=tensor.device)
            return values.uniform_(-bound, bound)

        factors = {}
        for name, tensor in like.items():
            rows, cols = matrix_shape(tensor.shape)
            factors[name] = Factors(
                uniform(tensor, rows, 1 / math.sqrt(k * rows)),
                uniform(tensor, cols, 1 / math.sqrt(cols)),
                tensor.shape,
            )
        return cls(k, factors)

    @property
    def nbytes(self) -> int:
        """Memory the factors take."""
        return sum(f.U.nbytes + f.V.nbytes for f in self.factors.values())

    def like(self) -> dict[str, Tensor]:
        """For every parameter a tensor of its shape, of no memory and no meaning."""
        return {name: f.U.new_zeros(()).expand(f.shape) for name, f in self.factors.items()}

    @property
    def device(self) -> torch.device:
        """Where the factors are."""
        return next(iter(self.factors.values())).U.device

    def zeros(self, size: int | tuple[int, int]) -> Tensor:
        """Zeros of the directions' precision, on their device."""
        dtype = next(iter(self.factors.values())).U.dtype
        return torch.zeros(size, dtype=dtype, device=self.device)

    def encode(self, x: Weights) -> Tensor:
        """ENC(x) = W^T x, as sum_l diag(U_l^T X_l V_l)."""
        z = self.zeros(self.k)
        for name, f in self.factors.items():
            z[f.columns] += f.encode(x[name])
        return z

    def decode(self, z: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """DEC(z) = W z, per parameter (U_l * z) V_l^T."""
        wanted = self.factors if names is None else names
        return {
            name: f.decode(z[f.columns])
            for name, f in ((name, self.factors[name]) for name in wanted)
        }

    def cross(self, other: Directions) -> Tensor:
        """W^T W' = sum_l (U_l^T U'_l) * (V_l^T V'_l), k x k', differentiable in the factors."""
        products = self.zeros((self.k, other.k))
        for name, a in self.factors.items():  # in this order always: sums depend on it
            if name in other.factors:
                b = other.factors[name]
                products[a.columns, b.columns] += (a.U.T @ b.U) * (a.V.T @ b.V)
        return products

    def gram(self) -> Tensor:
        """S = W^T W, k x k."""
        return self.cross(self)

    def cat(self, other: Directions) -> Directions:
        """These directions followed by those of ``other``."""
        factors = dict(self.factors)
        for name, f in other.factors.items():
            behind = Factors(f.U, f.V, f.shape, self.k + f.start)
            factors[name] = factors[name].joined(behind) if name in factors else behind
        return Directions(self.k + other.k, factors)

    def select(self, columns: Tensor) -> Directions:
        """Some of the directions, in the order asked for; every parameter has a part in all."""

        def chosen(factor: Tensor, start: int) -> Tensor:
            full = factor.new_zeros(factor.shape[0], self.k)
            full[:, start : start + factor.shape[1]] = factor
            return full[:, columns]

        return Directions(
            len(columns),
            {
                name: Factors(chosen(f.U, f.start), chosen(f.V, f.start), f.shape)
                for name, f in self.factors.items()
            },
        )

    def of_parameter(self, name: str) -> Directions:
        """One parameter's part in the directions; the same tensors, no copy."""
        return Directions(self.k, {name: self.factors[name]})

    def by_parameter(self) -> Directions:
        """The parts of all parameters as directions of their own; the same tensors, no copy.

        Their codes are ENC_l(x_l), which :meth:`encode` sums over l: first those of the first
        parameter, as many as there are directions in which it has a part, and so on.
        """
        factors, start = {}, 0
        for name, f in self.factors.items():
            factors[name] = Factors(f.U, f.V, f.shape, start)
            start = factors[name].columns.stop
        return Directions(start, factors)

    def adapted_to(self, x: Weights) -> Directions:
        """The same directions for parameters that may have grown or moved to another device."""
        missing = sorted(self.factors.keys() - x.keys())
        if missing:
            raise ModelError(
                f"The model no longer has {', '.join(map(repr, missing))}, for which prohibited "
                "directions of past experiences are held. Without these parameters the penalty is "
                "not defined: keep them in the model, or leave them out from the start with "
                "parameter_filter."
            )
        return Directions(
            self.k, {name: f.adapted_to(name, x[name]) for name, f in self.factors.items()}
        )
