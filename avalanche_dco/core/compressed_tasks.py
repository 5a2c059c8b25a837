"""What DCO-COMP keeps between tasks: directions that tasks share, and directions of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.core.checked import entries, is_count, is_floating, require
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, Weights
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.errors import SettingError


@dataclass(frozen=True)
class Layout:
    """Which columns belong to a task: (shared | own_1 | ... | own_n).

    :param shared: number of shared columns.
    :param own: number of own columns per task.
    :param tasks: number of tasks, n.
    """

    shared: int
    own: int
    tasks: int

    @classmethod
    def of(cls, k: int, tasks: int) -> Layout:
        """Columns for n tasks: k/2 shared ones and floor(k / 2n) of each task's own."""
        return cls(k // 2, k // (2 * tasks), tasks)

    @property
    def k(self) -> int:
        """Number of all columns."""
        return self.shared + self.tasks * self.own

    def columns(self, device: torch.device) -> list[Tensor]:
        """For each task the numbers of its columns: the shared ones and its own.

        :param device: where they are wanted.
        """
        numbers = torch.arange(self.k, device=device)
        own = map(self.own_columns, range(self.tasks))
        return [torch.cat([numbers[: self.shared], numbers[part]]) for part in own]

    def own_columns(self, task: int) -> slice:
        """A task's own columns."""
        first = self.shared + task * self.own
        return slice(first, first + self.own)

    def confined(self, directions: Directions, users: Mapping[str, int]) -> Directions:
        """Leave parameters that one task alone uses a part in its own columns only.

        :param directions: the columns.
        :param users: these parameters and the number of the task.
        """
        factors = dict(directions.factors)
        for name, task in users.items():
            f, own = factors[name], self.own_columns(task)
            part = slice(own.start - f.start, own.stop - f.start)
            factors[name] = Factors(f.U[:, part].clone(), f.V[:, part].clone(), f.shape, own.start)
        return Directions(directions.k, factors)


@dataclass(frozen=True)
class CompressedTasks:
    """The directions of n tasks in k columns.

    :param directions: the columns.
    :param layout: which of them belong to which task.
    :param targets: n x (shared + own), row j the codes of x_j* under task j's directions; for a
        penalty that does not couple layers n x parameters x (shared + own).
    :param couple_layers: whether codes are summed over parameters, as in the paper.
    :param shares: one per column, the share of the tasks' gradients along it; None if all count
        alike.
    """

    directions: Directions
    layout: Layout
    targets: Tensor
    couple_layers: bool = True
    shares: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory held between tasks."""
        shares = 0 if self.shares is None else self.shares.nbytes
        return self.directions.nbytes + self.targets.nbytes + shares

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and strings from which :meth:`from_state` makes the same tasks."""
        return {
            "directions": self.directions.state(),
            "shared": self.layout.shared,
            "own": self.layout.own,
            "targets": self.targets,
            "couple_layers": self.couple_layers,
            "shares": self.shares,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CompressedTasks:
        """The tasks that :meth:`state` was taken of; anything else is a StateError."""
        names = ("directions", "shared", "own", "targets", "couple_layers", "shares")
        parts, shared, own, targets, coupled, shares = entries(state, names, "the compressed tasks")
        directions = Directions.from_state(parts)
        require(is_count(shared) and is_count(own), "'shared' and 'own' have to be whole numbers")
        each = [shared + own] if coupled else [len(directions.factors), shared + own]
        require(
            isinstance(coupled, bool) and is_floating(targets, [None, *each]) and len(targets) > 0,
            "the targets of the compressed tasks do not belong to their directions",
        )
        layout = Layout(shared, own, len(targets))
        require(
            layout.k == directions.k and (shares is None or is_floating(shares, [layout.k])),
            "the shares of the compressed tasks do not belong to their directions",
        )
        return cls(directions, layout, targets, coupled, shares)

    def adapted_to(self, x: Weights) -> CompressedTasks:
        """The same tasks for parameters that may have grown or moved to another device."""
        directions = self.directions.adapted_to(x)
        device = directions.device
        return replace(
            self,
            directions=directions,
            targets=self.targets.to(device),
            shares=None if self.shares is None else self.shares.to(device),
        )

    def penalty(self) -> Penalty:
        """sum_j ||B_j^T (x - x_j*)||^2, every column in it once."""
        layout = self.layout
        shared, own = self.targets.split([layout.shared, layout.own], dim=-1)
        mean = shared.mean(0)
        weights = self.targets.new_ones(layout.k)
        weights[: layout.shared] = layout.tasks
        targets = torch.cat([mean, own.movedim(0, -2).flatten(-2)], dim=-1)
        if not self.couple_layers:
            parts = zip(targets, self.directions.factors.values(), strict=True)
            targets = torch.cat([of_parameter[f.columns] for of_parameter, f in parts])
        return Penalty(
            self.directions,
            targets,
            weights,
            (shared - mean).square().sum().item(),
            couple_layers=self.couple_layers,
        )


@dataclass(frozen=True)
class OldTasks:
    """What a compression is fitted to: the directions of all tasks as they were.

    :param directions: all columns side by side.
    :param columns: for each task, the numbers of its columns.
    :param shares: one per column; None if all count alike.
    """

    directions: Directions
    columns: list[Tensor]
    shares: Tensor | None

    @classmethod
    def of(
        cls, previous: CompressedTasks | None, new: Directions, shares: Tensor | None
    ) -> OldTasks:
        """The tasks so far and a new one."""
        if previous is None:
            return cls(new, [torch.arange(new.k, device=new.device)], shares)
        directions, layout = previous.directions.cat(new), previous.layout
        columns = layout.columns(directions.device)
        of_new = torch.arange(layout.k, directions.k, device=directions.device)
        if previous.shares is None and shares is None:
            return cls(directions, [*columns, of_new], None)
        if previous.shares is None or shares is None:
            raise SettingError(
                "The tasks so far and the new one can be compressed together only if all of them "
                "have shares or none has. Give compress the same kind for every task."
            )
        return cls(directions, [*columns, of_new], torch.cat([previous.shares, shares]))

    def users(self) -> dict[str, int]:
        """Parameters that have a part in the directions of one task alone, and this task."""
        single = {}
        for name, f in self.directions.factors.items():
            inside = [(c >= f.columns.start) & (c < f.columns.stop) for c in self.columns]
            tasks = [task for task, columns in enumerate(inside) if columns.any()]
            if len(tasks) < 2:  # none if there were no own columns
                single[name] = sum(tasks)
        return single

    def weights(self) -> list[Tensor]:
        """For each task, the weights q_p of its columns in the loss, which is 1 with no columns."""
        lengths = self.directions.gram().diagonal()
        if self.shares is None:
            energy = sum(lengths[columns].sum() for columns in self.columns)
            return [torch.ones_like(lengths[columns]) / energy for columns in self.columns]
        shares = [self.shares[columns] for columns in self.columns]
        energies = [(s * lengths[c]).sum() for s, c in zip(shares, self.columns, strict=True)]
        return [s / (len(shares) * e) for s, e in zip(shares, energies, strict=True)]
