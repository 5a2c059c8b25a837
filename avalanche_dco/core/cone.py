r"""Step 2 of Algorithm 1: push the weights into the cone.

After convergence the weights travel on for N epochs; x_1 and x_2 are the means of the first and of
the last C points of that trajectory. (The paper's pseudo-code sums them; its text says averages,
and only these make sense.) Section 3 shows that the region of low loss widens from x_1 towards x_2,
so x* is taken a step of length theta that way:

.. math:: x^* = x_1 - \theta \frac{x_1 - x_2}{||x_1 - x_2||}
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class TrajectoryEnds:
    """Running means of the first and the last C points of a trajectory of known length.

    On a trajectory shorter than 2 C points no point counts at both ends: the first half makes
    x_1, the rest x_2.

    :param length: number of points that will be added.
    :param points: C.
    """

    def __init__(self, length: int, points: int):
        points = min(points, (length + 1) // 2)
        self._length = length
        self._last_first = points
        self._first_last = max(points, length - points)
        self._added = 0
        self._first = _Mean()
        self._last = _Mean()

    def add(self, x: Sequence[Tensor]) -> None:
        """Take in the next point."""
        self._added += 1
        if self._added <= self._last_first:
            self._first.add(x)
        elif self._added > self._first_last:
            self._last.add(x)

    @property
    def complete(self) -> bool:
        """Whether all points have been added."""
        return self._added == self._length

    @property
    def first(self) -> list[Tensor]:
        """x_1."""
        return self._first.value

    @property
    def last(self) -> list[Tensor]:
        """x_2; a trajectory of a single point ends where it began."""
        return self._last.value or self._first.value


class _Mean:
    def __init__(self) -> None:
        self.value: list[Tensor] = []
        self._count = 0

    def add(self, x: Sequence[Tensor]) -> None:
        self._count += 1
        if not self.value:
            self.value = [tensor.detach().clone() for tensor in x]
            return
        for mean, tensor in zip(self.value, x, strict=True):
            mean.lerp_(tensor.detach(), 1 / self._count)


def push(first: Sequence[Tensor], last: Sequence[Tensor], theta: float) -> list[Tensor] | None:
    """x* = x_1 - theta (x_1 - x_2) / ||x_1 - x_2||.

    :param theta: length of the step; beyond ``||x_1 - x_2||`` it extrapolates.
    :return: x*; None if x_1 and x_2 differ by rounding only, as with a learning rate of next to
        nothing: a step of length theta along rounding noise would lead anywhere.
    """
    rounding = max(torch.finfo(tensor.dtype).eps for tensor in first)
    difference = [a - b for a, b in zip(first, last, strict=True)]
    norm = norm_of(difference)
    if not norm > 10 * rounding * norm_of(first):  # also if it is not a number
        return None
    return [a - delta * (theta / norm) for a, delta in zip(first, difference, strict=True)]


def norm_of(tensors: Sequence[Tensor]) -> float:
    """The l2 norm of all of them together."""
    return math.hypot(*(torch.linalg.vector_norm(tensor).item() for tensor in tensors))
