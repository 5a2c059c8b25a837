r"""Ways to add the curvatures of tasks, :math:`\sum_j S_j \otimes A_j`, in constant memory.

None of them but the sum of one task is exact. Each is a class with ``add`` (one more task) and
``step`` (the damped step of all tasks so far). Index legend: see
:mod:`avalanche_dco.core.layers`; there are no groups and no bias here, so that g is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from avalanche_dco.core.damping import DampedStep
from avalanche_dco.core.kronecker import KroneckerFactors

Step = Callable[[Tensor], Tensor]
"""Applies ``(I + lambda sum_j S_j (x) A_j)^-1`` to an update: from what a matrix was changed by to
what to subtract from it, both g x o x d."""


class TaskSum(Protocol):
    """The curvature of one layer, summed over tasks."""

    def add(self, task: KroneckerFactors) -> None:
        """One more task."""

    def step(self, strength: float, negligible: float) -> Step:
        """The damped step.

        :param negligible: directions that shorten a step by less may be left out.
        """

    def free_share(self, strength: float) -> float:
        """The mean of 1 / (1 + lambda times each eigenvalue)."""


Pair = tuple[Tensor, Tensor]  # A, S


class KroneckerSum:
    """Keeps one Kronecker product: that of the sum so far and a new task.

    :param pair: gives A and S of the sum of two products.
    """

    def __init__(self, pair: Callable[[Pair, Pair], Pair]):
        self._pair = pair
        self._kept: KroneckerFactors | None = None

    def add(self, task: KroneckerFactors) -> None:
        """One more task."""
        kept = self._kept
        if kept is not None:
            task = KroneckerFactors(*self._pair((kept.A, kept.S), (task.A, task.S)))
        self._kept = task

    def step(self, strength: float, negligible: float) -> Step:
        """The damped step."""
        assert self._kept is not None
        return DampedStep(self._kept, strength, negligible).correction

    def free_share(self, strength: float) -> float:
        """The mean of 1 / (1 + lambda times each eigenvalue)."""
        assert self._kept is not None
        return self._kept.free_share(strength)


class MeanSum(KroneckerSum):
    r""":math:`(\sum_j A_j) \otimes (\frac1n \sum_j S_j)`."""

    def __init__(self) -> None:
        super().__init__(lambda old, new: new)

    def add(self, task: KroneckerFactors) -> None:
        """One more task."""
        kept = self._kept
        self._kept = (
            task
            if kept is None
            else KroneckerFactors(kept.A + task.A, kept.S + task.S, tasks=kept.tasks + 1)
        )


def traces(old: Pair, new: Pair) -> Pair:
    r"""The two partial traces, which are exact: A = sum_j tr(S_j) A_j, S = sum_j tr(A_j) S_j.

    The product has the sum's trace. It does not depend on the order of the tasks.
    """
    (A0, S0), (A1, S1) = old, new
    a0, s0, a1, s1 = (_trace(m) for m in (A0, S0, A1, S1))
    A = s0 * A0 + s1 * A1
    return A, (a0 * S0 + a1 * S1) / _trace(A)


def nearest(old: Pair, new: Pair) -> Pair:
    r"""The Kronecker product nearest to the sum of two, in the Frobenius norm.

    Rearranged, the sum is :math:`s_0 a_0^\top + s_1 a_1^\top` with the flattened factors, and the
    nearest product is its first singular pair: a 2 x 2 eigenproblem.
    """
    (A0, S0), (A1, S1) = old, new
    a, s = (torch.stack([x.flatten(), y.flatten()]).double() for x, y in ((A0, A1), (S0, S1)))
    gram_a, gram_s = a @ a.T, s @ s.T
    # M = s^T a; the first right singular vector is a^T c with gram_s gram_a c = sigma^2 c.
    values, vectors = torch.linalg.eig(gram_s @ gram_a)
    c = vectors[:, values.real.argmax()].real
    c = c * c.sum().sign()
    v = c @ a
    u = (gram_a @ c) @ s / (v @ v)  # M v / |v|^2
    return v.view_as(A0).to(A0), u.view_as(S0).to(S0)


def kl_optimal(damping: float, rounds: int = 20) -> Callable[[Pair, Pair], Pair]:
    r"""The fixed point that is nearest in the Kullback-Leibler divergence of the Gaussians.

    :math:`A = \frac1o \sum_j A_j \, tr(S^{-1} S_j)`, :math:`S = \frac1d \sum_j S_j \, tr(A^{-1}
    A_j)`. Factors may be singular: in the traces, a share of its mean eigenvalue is added to each.
    """

    def pair(old: Pair, new: Pair) -> Pair:
        A, S = traces(old, new)
        for _ in range(rounds):
            A = _weighted(S, (old[1], new[1]), (old[0], new[0]), damping)
            S = _weighted(A, (old[0], new[0]), (old[1], new[1]), damping)
        return A, S

    return pair


def _weighted(known: Tensor, parts: Pair, others: Pair, damping: float) -> Tensor:
    """The sum of ``others`` with the weights tr(known^-1 part) / size."""
    inverse = torch.linalg.inv(_damped(known, damping))
    weights = [(inverse * _damped(part, damping)).sum() / known.shape[-1] for part in parts]
    return weights[0] * others[0] + weights[1] * others[1]


def _damped(matrix: Tensor, damping: float) -> Tensor:
    size = matrix.shape[-1]
    eye = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    return matrix + (damping * _trace(matrix) / size).clamp(min=1e-30) * eye


class EigenvalueSum:
    r"""One eigenbasis, :math:`U \otimes V` of the partial traces, with an eigenvalue each.

    The diagonal of :math:`\sum_j S_j \otimes A_j` in this basis has one value per direction, not a
    product of two. When the basis turns, the old diagonal is taken along as
    :math:`(U^\top U')^2 D' (V'^\top V)^2`.
    """

    def __init__(self) -> None:
        self._traces = KroneckerSum(traces)
        self._U = self._V = self._D = torch.zeros(())

    def add(self, task: KroneckerFactors) -> None:
        """One more task."""
        self._traces.add(task)
        assert self._traces._kept is not None
        U = torch.linalg.eigh(self._traces._kept.S).eigenvectors
        V = torch.linalg.eigh(self._traces._kept.A).eigenvectors
        s, a = (((m @ Q) * Q).sum(1).clamp(min=0) for m, Q in ((task.S, U), (task.A, V)))
        new = s.unsqueeze(2) * a.unsqueeze(1)
        if self._D.ndim:
            new = new + (U.mT @ self._U).square() @ self._D @ (self._V.mT @ V).square()
        self._U, self._V, self._D = U, V, new

    def step(self, strength: float, negligible: float) -> Step:
        """The damped step."""
        U, V, gain = self._U, self._V, 1 - 1 / (1 + strength * self._D)
        return lambda change: U @ (gain * (U.mT @ change @ V)) @ V.mT

    def free_share(self, strength: float) -> float:
        """The mean of 1 / (1 + lambda times each eigenvalue)."""
        return float((1 / (1 + strength * self._D)).mean())


class LowRankSum:
    """The directions u v^T of every task with the largest weights, as many of each task.

    :param budget: the number of directions in all; a new task makes every other one drop its least.
    """

    def __init__(self, budget: int):
        self._budget = budget
        self._tasks: list[tuple[Tensor, Tensor, Tensor]] = []  # U (o x k), V (d x k), weights

    def add(self, task: KroneckerFactors) -> None:
        """One more task."""
        s, U = torch.linalg.eigh(task.S[0])
        a, V = torch.linalg.eigh(task.A[0])
        weights = (s.clamp(min=0)[:, None] * a.clamp(min=0)).flatten()
        weights, order = weights.sort(descending=True)
        order = order[: self._budget]
        rows, columns = order // len(a), order % len(a)
        self._tasks.append((U[:, rows], V[:, columns], weights[: self._budget]))
        each = self._budget // len(self._tasks)
        self._tasks = [(U[:, :each], V[:, :each], w[:each]) for U, V, w in self._tasks]

    def step(self, strength: float, negligible: float) -> Step:
        """The damped step."""
        U, V, weights = (torch.cat(parts, dim=-1) for parts in zip(*self._tasks, strict=True))
        kept = strength * weights > negligible / (1 - negligible)
        return _along(U[:, kept], V[:, kept], strength * weights[kept])

    def free_share(self, strength: float) -> float:
        """The mean of 1 / (1 + lambda times each eigenvalue)."""
        U, V, weights = (torch.cat(parts, dim=-1) for parts in zip(*self._tasks, strict=True))
        roots = (strength * weights).sqrt()
        gram = (U.T @ U) * (V.T @ V) * roots * roots[:, None]
        taken = 1 - 1 / (1 + torch.linalg.eigvalsh(gram).clamp(min=0))
        return 1 - float(taken.sum()) / (len(U) * len(V))


def _along(U: Tensor, V: Tensor, weights: Tensor) -> Step:
    """I - W (diag(1 / lambda w) + W^T W)^-1 W^T, with W the directions as columns (Woodbury)."""
    roots = weights.double().sqrt()
    gram = (U.T @ U).double() * (V.T @ V).double() * roots * roots[:, None]
    gram.diagonal().add_(1)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    inverse = (inverse * roots * roots[:, None]).to(U)
    return lambda change: ((U * (inverse @ (U * (change[0] @ V)).sum(0))) @ V.T)[None]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum()


SUMS: dict[str, Callable[[], TaskSum]] = {
    "mean": MeanSum,
    "traces": lambda: KroneckerSum(traces),
    "nearest": lambda: KroneckerSum(nearest),
    "kl": lambda: KroneckerSum(kl_optimal(0.1)),
    "kl-little-damped": lambda: KroneckerSum(kl_optimal(0.01)),
    "eigenvalues": EigenvalueSum,
    "low-rank": lambda: LowRankSum(1000),
}
"""All sums by name."""

TITLES = {
    "mean": "sum of A, mean of S",
    "traces": "partial traces",
    "nearest": "nearest in the Frobenius norm",
    "kl": "KL-optimal, damped by 0.1",
    "kl-little-damped": "KL-optimal, damped by 0.01",
    "eigenvalues": "one eigenvalue per direction",
    "low-rank": "1,000 directions in all",
}
"""What tables call them."""
