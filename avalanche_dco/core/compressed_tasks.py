"""What DCO-COMP keeps between tasks: directions that tasks share, and directions of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.core.checked import entries, is_count, is_floating, require
from avalanche_dco.core.directions import Directions, Weights
from avalanche_dco.core.penalty import Penalty


@dataclass
class CompressedTasks:
    """The directions of n tasks in k columns.

    :param directions: columns (shared | own_1 | ... | own_n).
    :param shared: number of shared columns.
    :param own: number of own columns per task.
    :param targets: n x (shared + own), row j the codes of x_j* under task j's directions; for a
        penalty that does not couple layers n x parameters x (shared + own).
    :param shares: one per column, the share of the tasks' gradients along it; None if all count
        alike.
    """

    directions: Directions
    shared: int
    own: int
    targets: Tensor
    shares: Tensor | None = None

    @property
    def tasks(self) -> int:
        """Number of tasks, n."""
        return len(self.targets)

    @property
    def couple_layers(self) -> bool:
        """Whether the targets are codes summed over parameters, as in the paper."""
        return self.targets.ndim == 2

    def columns(self, task: int) -> Tensor:
        """Numbers of the columns that belong to a task: the shared ones and its own."""
        first = self.shared + task * self.own
        device = self.targets.device
        return torch.cat(
            [
                torch.arange(self.shared, device=device),
                torch.arange(first, first + self.own, device=device),
            ]
        )

    @property
    def nbytes(self) -> int:
        """Memory held between tasks."""
        shares = 0 if self.shares is None else self.shares.nbytes
        return self.directions.nbytes + self.targets.nbytes + shares

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and strings from which :meth:`from_state` makes the same tasks."""
        return {
            "directions": self.directions.state(),
            "shared": self.shared,
            "own": self.own,
            "targets": self.targets,
            "shares": self.shares,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CompressedTasks:
        """The tasks that :meth:`state` was taken of; anything else is a StateError."""
        names = ("directions", "shared", "own", "targets", "shares")
        parts, shared, own, targets, shares = entries(state, names, "the compressed tasks")
        directions = Directions.from_state(parts)
        k, factors = directions.k, directions.factors.values()
        require(is_count(shared) and is_count(own), "'shared' and 'own' have to be whole numbers")
        uncoupled = is_floating(targets, [None, len(factors), shared + own])
        require(
            (is_floating(targets, [None, shared + own]) or uncoupled)
            and len(targets) > 0
            and shared + len(targets) * own == k
            and (not uncoupled or all(f.U.shape[1] == k for f in factors))
            and (shares is None or is_floating(shares, [k])),
            "the targets or shares of the compressed tasks do not belong to their directions",
        )
        return cls(directions, shared, own, targets, shares)

    def following(self, x: Weights) -> CompressedTasks:
        """The same tasks for parameters that may have grown or moved to another device."""
        directions = self.directions.following(x)
        device = directions.device
        return replace(
            self,
            directions=directions,
            targets=self.targets.to(device),
            shares=None if self.shares is None else self.shares.to(device),
        )

    def penalty(self) -> Penalty:
        """sum_j ||B_j^T (x - x_j*)||^2, every column in it once."""
        shared, own = self.targets.split([self.shared, self.own], dim=-1)
        mean = shared.mean(0)
        weights = self.targets.new_ones(self.directions.k)
        weights[: self.shared] = self.tasks
        return Penalty(
            self.directions,
            torch.cat([mean, own.movedim(0, -2).flatten(-2)], dim=-1).flatten(),
            weights,
            (shared - mean).square().sum().item(),
            couple_layers=self.couple_layers,
        )
