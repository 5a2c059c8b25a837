"""The implicit step on the penalty of past tasks: an optimizer's update, shortened.

See :mod:`avalanche_dco.core.kronecker` for the formula and the index legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from avalanche_dco.core.factors import Weights
from avalanche_dco.core.kronecker import Curvature, KroneckerFactors, bias_of
from avalanche_dco.core.layers import as_matrix, at_least_single, split_matrix
from avalanche_dco.core.span import energy


def eigen(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending and not negative, and eigenvectors of a Kronecker factor.

    Inputs or outputs that are always zero have eigenvalue zero and are left out, such as the
    border of a padded convolution that sees a single pixel: eight ninths of the factor of the last
    convolutions of a ResNet-18 on small images, with which single precision did not converge.
    Where it does not converge all the same, double precision is used.

    :param factor: g x n x n, symmetric and positive semi-definite up to rounding.
    :return: the eigenvalues, g x m, and the eigenvectors as columns, g x n x m.
    """
    used = factor.diagonal(dim1=1, dim2=2).ne(0).any(0)
    used[0] |= ~used.any()  # an eigenvalue of zero rather than none
    block = factor[:, used][:, :, used]
    try:
        values, vectors = torch.linalg.eigh(block)
    except torch.linalg.LinAlgError:
        if block.dtype == torch.float64 or not torch.isfinite(block).all():
            raise
        values, vectors = (part.to(block) for part in torch.linalg.eigh(block.double()))
    embedded = factor.new_zeros(len(factor), factor.shape[1], block.shape[1])
    embedded[:, used] = vectors
    return values.clamp(min=0), embedded


class DampedStep:
    """(I + lambda S (x) A)^-1, applied to the update of one layer.

    :param factors: the layer's curvature.
    :param strength: lambda.
    :param negligible: directions along which a step is shortened by less than this share are left
        out, as far as whole rows or columns of U_S and U_A have no others; exact for 0.
    """

    def __init__(self, factors: KroneckerFactors, strength: float, negligible: float = 0.0):
        (s, U), (a, V) = eigen(factors.S), eigen(factors.A)
        s = s * (strength / factors.tasks)
        # Eigenvalues ascend: the last ones are kept, as many in every group.
        damping = negligible / (1 - negligible)
        rows = int((s * a[:, -1:] > damping).sum(1).max())
        columns = int((a * s[:, -1:] > damping).sum(1).max())
        s, U = s[:, s.shape[1] - rows :], U[:, :, U.shape[2] - rows :]
        a, V = a[:, a.shape[1] - columns :], V[:, :, V.shape[2] - columns :]
        weight = s.unsqueeze(2) * a.unsqueeze(1)
        self.gain = 1 - 1 / (1 + weight)  # 1 also where the weight is infinite
        self.U, self.V = U.contiguous(), V.contiguous()
        outputs, inputs = U.shape[1], V.shape[1]
        self._outputs_first = rows * inputs * (outputs + columns) <= (
            columns * outputs * (inputs + rows)
        )

    def correction(self, change: Tensor) -> Tensor:
        """What to subtract from the layer's matrix after an update.

        :param change: the update dW, g x o x d.
        """
        if self._outputs_first:
            codes = (self.U.mT @ change @ self.V).mul_(self.gain)
            return self.U @ (codes @ self.V.mT)
        codes = (self.U.mT @ (change @ self.V)).mul_(self.gain)
        return (self.U @ codes) @ self.V.mT

    def corrections(self, changes: list[Tensor]) -> list[Tensor]:
        """The same for the updates of the layer's weight and, if it counts, its bias."""
        matrix = self.correction(as_matrix(*changes, groups=len(self.U)))
        return split_matrix(matrix, [change.shape for change in changes])


Part = tuple[list[str], Callable[[list[Tensor]], list[Tensor]]]
"""Names of parameters, and what to subtract from each of them after their updates."""


def _parts(curvature: Curvature, strength: float, negligible: float = 0.0) -> list[Part]:
    """A weight and perhaps a bias for each layer; each other parameter by itself."""
    parts: list[Part] = [
        (
            [name, bias_of(name)] if f.bias else [name],
            DampedStep(f, strength, negligible).corrections,
        )
        for name, f in curvature.layers.items()
    ]
    for name, diagonal in curvature.diagonal.items():
        gain = 1 - 1 / (1 + strength * diagonal)
        parts.append(([name], partial(_scaled, gain)))
    return parts


def _scaled(gain: Tensor, changes: list[Tensor]) -> list[Tensor]:
    return [gain * change for change in changes]


class DampedShare:
    r"""How much of a gradient is damped away: :math:`1 - g^\top (I + \lambda M)^{-1} g / ||g||^2`.

    The counterpart of :class:`avalanche_dco.core.span.DirectionSpan`; directions count by how much
    they are damped. For lambda to infinity it is the share of g in their span.

    :param curvature: M, of all past tasks.
    :param strength: lambda.
    """

    def __init__(self, curvature: Curvature, strength: float):
        self._parts = _parts(curvature, strength)

    def shares(self, gradients: Iterable[Weights]) -> Tensor:
        """Each gradient's share, between 0 and 1.

        :param gradients: tensors by parameter name. One without curvature counts in ``||g||^2``.
            A gradient of zero has a share of 0, one that is not finite has NaN.
        :return: one number per gradient, float64.
        """
        return torch.tensor([self._share(g) for g in gradients], dtype=torch.float64)

    def _share(self, gradient: Weights) -> float:
        damped = 0.0
        for names, corrections in self._parts:
            weight = gradient.get(names[0])
            if weight is not None:
                missing = weight.new_zeros(len(weight)) if weight.ndim else weight
                given = [at_least_single(gradient.get(name, missing)) for name in names]
                for g, correction in zip(given, corrections(given), strict=True):
                    damped += float((g.double() * correction).sum())
        whole = float(energy(gradient))
        if not math.isfinite(whole):
            return math.nan
        return min(damped / whole, 1.0) if whole else 0.0


class DampedUpdate:
    """The damped step of all parameters, around an optimizer's steps.

    The step is linear: damping the sum of a few updates is damping each of them. So the matrix
    products are needed every few updates only; what differs is where gradients are evaluated in
    between.

    :param curvature: of all past tasks.
    :param parameters: the model's parameters by name.
    :param strength: lambda.
    :param negligible: see :class:`DampedStep`.
    :param every: how many updates are damped together.
    """

    def __init__(
        self,
        curvature: Curvature,
        parameters: Mapping[str, Tensor],
        strength: float,
        negligible: float = 0.0,
        every: int = 1,
    ):
        self._parts = _parts(curvature, strength, negligible)
        self._now = {name: parameters[name] for names, _ in self._parts for name in names}
        self._before = {name: torch.empty_like(now) for name, now in self._now.items()}
        self._every, self._updates = every, 0
        self._moved: set[str] = set()
        """What the optimizer has moved since the last time it was damped."""

    @torch.no_grad()
    def before_update(self) -> None:
        """Note what the optimizer is going to move and, before the first update, from where."""
        if self._updates == 0 and self._before:
            torch._foreach_copy_(list(self._before.values()), list(self._now.values()))
        self._moved |= {name for name, now in self._now.items() if now.grad is not None}

    @torch.no_grad()
    def damp_since(self, start: Weights) -> None:
        """Damp the whole way from other weights to the present ones.

        :param start: the weights by name; the present ones are kept where there is none.
        """
        for name, before in self._before.items():
            before.copy_(start.get(name, self._now[name]))
        for part in self._parts:
            self._damp(part)

    def after_update(self) -> None:
        """Damp the last updates if there have been enough of them."""
        self._updates += 1
        if self._updates == self._every:
            self.finish()

    @torch.no_grad()
    def finish(self) -> None:
        """Damp the updates that have not been damped yet."""
        for part in self._parts if self._updates else ():
            if not self._moved.isdisjoint(part[0]):
                self._damp(part)
        self._updates = 0
        self._moved.clear()

    def _damp(self, part: Part) -> None:
        names, corrections = part
        changes = [at_least_single(self._now[n]) - self._before[n] for n in names]
        for name, correction in zip(names, corrections(changes), strict=True):
            self._now[name].sub_(correction)
