"""The implicit step on the penalty of past tasks: an optimizer's update, shortened.

See :mod:`avalanche_dco.core.kronecker` for the formula and the index legend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

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


class DampedDiagonal:
    """(I + lambda diag(h))^-1, applied to the update of a parameter that is no layer's matrix.

    :param curvature: h, shaped like the parameter.
    :param strength: lambda.
    """

    def __init__(self, curvature: Tensor, strength: float):
        self._gain = 1 - 1 / (1 + strength * curvature)

    def correction(self, change: Tensor) -> Tensor:
        """What to subtract from the parameter after an update.

        :param change: the update, shaped like the parameter.
        """
        return self._gain * change


class DampedShare:
    r"""How much of a gradient is damped away: :math:`1 - g^\top (I + \lambda M)^{-1} g / ||g||^2`.

    The counterpart of :class:`avalanche_dco.core.span.DirectionSpan`; directions count by how much
    they are damped. For lambda to infinity it is the share of g in their span.

    :param curvature: M, of all past tasks.
    :param strength: lambda.
    """

    def __init__(self, curvature: Curvature, strength: float):
        self._layers = {
            name: (DampedStep(f, strength), f.bias, len(f.S))
            for name, f in curvature.layers.items()
        }
        self._diagonal = {
            name: DampedDiagonal(part, strength) for name, part in curvature.diagonal.items()
        }

    def shares(self, gradients: Iterable[Weights]) -> Tensor:
        """Each gradient's share, between 0 and 1.

        :param gradients: tensors by parameter name. One without curvature counts in ``||g||^2``.
            A gradient of zero has a share of 0, one that is not finite has NaN.
        :return: one number per gradient, float64.
        """
        return torch.tensor([self._share(g) for g in gradients], dtype=torch.float64)

    def _share(self, gradient: Weights) -> float:
        damped = 0.0
        for name, (step, bias, groups) in self._layers.items():
            if name in gradient:
                parts = [gradient[name]]
                if bias:
                    parts.append(gradient.get(bias_of(name), parts[0].new_zeros(len(parts[0]))))
                damped += _inner(step, as_matrix(*map(at_least_single, parts), groups=groups))
        for name, diagonal in self._diagonal.items():
            if name in gradient:
                damped += _inner(diagonal, at_least_single(gradient[name]))
        whole = float(energy(gradient))
        if not math.isfinite(whole):
            return math.nan
        return min(damped / whole, 1.0) if whole else 0.0


def _inner(step: DampedStep | DampedDiagonal, part: Tensor) -> float:
    return float((part.double() * step.correction(part)).sum())


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
        self._parameters = parameters
        self._entries: list[_Entry] = []
        for name, factors in curvature.layers.items():
            names = [name, *([bias_of(name)] if factors.bias else [])]
            step = DampedStep(factors, strength, negligible)
            self._entries.append(_Entry([parameters[n] for n in names], step, len(factors.S)))
        for name, part in curvature.diagonal.items():
            self._entries.append(_Entry([parameters[name]], DampedDiagonal(part, strength)))
        self._every = every
        self._updates = 0

    @torch.no_grad()
    def before_update(self) -> None:
        """Note what the optimizer is going to move and, before the first update, from where."""
        if self._updates == 0 and self._entries:
            torch._foreach_copy_(
                [before for entry in self._entries for before in entry.before],
                [parameter for entry in self._entries for parameter in entry.parameters],
            )
        for entry in self._entries:
            entry.moves = entry.moves or any(p.grad is not None for p in entry.parameters)

    @torch.no_grad()
    def damp_since(self, start: Weights) -> None:
        """Damp the whole way from other weights to the present ones.

        :param start: the weights by name; the present ones are kept where there is none.
        """
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        for entry in self._entries:
            keys = [names[id(parameter)] for parameter in entry.parameters]
            for key, before, now in zip(keys, entry.before, entry.parameters, strict=True):
                before.copy_(start.get(key, now))
            entry.damp()

    def after_update(self) -> None:
        """Damp the last updates if there have been enough of them."""
        self._updates += 1
        if self._updates == self._every:
            self.finish()

    @torch.no_grad()
    def finish(self) -> None:
        """Damp the updates that have not been damped yet."""
        if self._updates:
            for entry in self._entries:
                if entry.moves:
                    entry.damp()
                entry.moves = False
            self._updates = 0


class _Entry:
    """One layer's or parameter's step."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        step: DampedStep | DampedDiagonal,
        groups: int | None = None,
    ):
        self.parameters, self.step, self._groups = parameters, step, groups
        self.before = [torch.empty_like(parameter) for parameter in parameters]
        self.moves = False
        """Whether the optimizer has moved it since the last time it was damped."""

    def damp(self) -> None:
        changes = [
            at_least_single(now) - before
            for now, before in zip(self.parameters, self.before, strict=True)
        ]
        if self._groups is None:
            corrections = [self.step.correction(changes[0])]
        else:
            matrix = self.step.correction(as_matrix(*changes, groups=self._groups))
            corrections = split_matrix(matrix, [change.shape for change in changes])
        for parameter, correction in zip(self.parameters, corrections, strict=True):
            parameter.sub_(correction)
