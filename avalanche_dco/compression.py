r"""DCO-COMP: the directions of all tasks in constant memory, Eq. (dco_comp1) and (dco_comp2).

After task i there are k/2 *shared* directions, which belong to every task, and floor(k / 2i) *own*
directions per task. Task j's compressed autoencoder is :math:`B_j = (\bar W, \tilde W^j)`. All of
them are fitted together to the directions :math:`W^j` that the tasks had before,

.. math:: L_{mse} = \sum_j || B_j B_j^T W^j - W^j ||^2
        = \sum_j ||W^j||^2 - 2 ||C_j||^2 + tr(C_j^T S_j C_j),
        \quad C_j = B_j^T W^j, \quad S_j = B_j^T B_j.

With all columns side by side, B = (shared, own_1, ..., own_i), every C_j and S_j is a block of
``B^T W`` or ``B^T B``, and these are sums over parameters of products of small matrices
(:meth:`Directions.cross`). Neither the gradients nor anything of size k x d is needed. The products
over parameters cost the same after any number of tasks; only the
small blocks, one per task, add up.

**Targets.** The penalty of task j needs :math:`t_j = B_j^T x_j^*`, but x_j* is not kept; known are
its codes under the old directions, :math:`W_j^T x_j^*`. Of all weights with these codes, the ones
nearest to the present weights x are :math:`x + W_j S^+ (W_j^T x_j^* - W_j^T x)`, S the Gram matrix
of W_j. Their codes under B_j are the new targets. What x_j* had outside the span of W_j, task j
did not ask to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from avalanche_dco.directions import Directions, Weights
from avalanche_dco.penalty import Penalty

Start = Literal["previous", "longest", "noise"]


@dataclass
class CompressedTasks:
    """The directions of n tasks in k columns.

    :param directions: columns (shared | own_1 | ... | own_n).
    :param shared: number of shared columns.
    :param own: number of own columns per task.
    :param targets: n x (shared + own), row j the codes of x_j* under task j's directions.
    """

    directions: Directions
    shared: int
    own: int
    targets: Tensor

    @property
    def tasks(self) -> int:
        """Number of tasks, n."""
        return len(self.targets)

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
        return self.directions.nbytes + self.targets.nbytes

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and strings from which :meth:`from_state` makes the same tasks."""
        return {
            "directions": self.directions.state(),
            "shared": self.shared,
            "own": self.own,
            "targets": self.targets,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CompressedTasks:
        """The tasks that :meth:`state` was taken of."""
        return cls(**{**state, "directions": Directions.from_state(state["directions"])})

    def penalty(self) -> Penalty:
        """sum_j ||B_j^T (x - x_j*)||^2, every column in it once."""
        shared, own = self.targets.split([self.shared, self.own], dim=1)
        mean = shared.mean(0)
        weights = self.targets.new_ones(self.directions.k)
        weights[: self.shared] = self.tasks
        return Penalty(
            self.directions,
            torch.cat([mean, own.reshape(-1)]),
            weights,
            (shared - mean).square().sum().item(),
        )


def compress(
    previous: CompressedTasks | None,
    new: Directions,
    x_star: Weights,
    *,
    k: int,
    updates: int = 50,
    lr: float = 2e-2,
    rho: float = 100.0,
    start: Start = "previous",
) -> tuple[CompressedTasks, list[float]]:
    """Take a new task's directions in with those of the previous tasks.

    :param previous: the tasks so far; None if the new one is the first.
    :param new: the new task's directions, any number of them.
    :param x_star: the new task's weights x_i*, where the model is now.
    :param k: number of columns to be held afterwards, for all tasks together.
    :param updates: number of updates of Adam.
    :param lr: its learning rate.
    :param rho: factor on the loss, which is the relative reconstruction error.
    :param start: where to start from. Of a task's own columns the longest stay its own; shared are
        those that were (``"previous"``), or the longest of these and of all columns that have to
        go (``"longest"``). ``"noise"`` starts from small random numbers instead.
    :return: all tasks, and the relative reconstruction error before each update.
    """
    tasks = 1 if previous is None else previous.tasks + 1
    old = new if previous is None else previous.directions.cat(new)
    of_task = [] if previous is None else [previous.columns(j) for j in range(tasks - 1)]
    codes = old.encode(x_star)
    of_task.append(torch.arange(old.k - new.k, old.k, device=codes.device))

    shared, own = k // 2, k // (2 * tasks)
    if start == "noise":
        compressed = Directions.random(
            {name: x_star[name] for name in old.factors}, shared + tasks * own
        )
    else:
        compressed = _kept(
            old,
            of_task,
            shared,
            own,
            old_shared=0 if previous is None else previous.shared,
            keep_shared=start == "previous",
        )
    held = CompressedTasks(compressed, shared, own, codes.new_zeros(tasks, shared + own))
    errors = _fit(held, old, of_task, updates=updates, lr=lr, rho=rho)
    held.targets = _targets(held, old, of_task, previous, x_star)
    return held, errors


def _kept(
    old: Directions,
    of_task: list[Tensor],
    shared: int,
    own: int,
    *,
    old_shared: int,
    keep_shared: bool,
) -> Directions:
    """The old columns to start from: of a task's own ones the longest stay its own.

    :param keep_shared: whether the shared columns are those shared before; otherwise the longest
        of these and of all that has to go are shared.
    """
    lengths = old.gram().diagonal()

    def longest(columns: Tensor, n: int) -> Tensor:
        return columns[lengths[columns].argsort(descending=True)[:n]]

    *of_previous, of_new = of_task
    owns = [longest(columns[old_shared:], own) for columns in of_previous]
    owns.append(longest(of_new, own))
    if of_previous and keep_shared:
        common = of_previous[0][:old_shared]
    else:  # the first task shares what its own columns leave over
        everything = torch.arange(old.k, device=lengths.device)
        common = longest(everything[~torch.isin(everything, torch.cat(owns))], shared)
    together = _padded(old, common, shared)
    for columns in owns:
        together = together.cat(_padded(old, columns, own))
    return together


def _padded(old: Directions, columns: Tensor, n: int) -> Directions:
    """The given columns and, where there are fewer than n, small random ones."""
    taken = old.select(columns)
    if len(columns) == n:
        return taken
    like = {
        name: torch.empty(f.shape, dtype=f.U.dtype, device=f.U.device)
        for name, f in old.factors.items()
    }
    return taken.cat(Directions.random(like, n - len(columns)))


def _fit(
    held: CompressedTasks,
    old: Directions,
    of_task: list[Tensor],
    *,
    updates: int,
    lr: float,
    rho: float,
) -> list[float]:
    """Minimise Eq. (dco_comp1) over the shared and all own columns together."""
    factors = held.directions.factors
    tensors = [tensor.requires_grad_() for f in factors.values() for tensor in (f.U, f.V)]
    optimizer = torch.optim.Adam(tensors, lr=lr)
    energy = sum(old.gram().diagonal()[columns].sum() for columns in of_task)
    errors = []
    for _ in range(updates):
        error = 1 + lost_energy(held, old, of_task) / energy
        optimizer.zero_grad()
        (rho * error).backward()
        optimizer.step()
        errors.append(error.item())
    for f in factors.values():
        f.U, f.V = f.U.detach(), f.V.detach()
    return errors


def lost_energy(held: CompressedTasks, old: Directions, of_task: list[Tensor]) -> Tensor:
    """sum_j tr(C_j^T S_j C_j) - 2 ||C_j||^2, the loss up to the constant sum_j ||W^j||^2."""
    S, BW = held.directions.gram(), held.directions.cross(old)
    loss = S.new_zeros(())
    for task, columns in enumerate(of_task):
        mine = held.columns(task)
        C = BW[mine[:, None], columns]
        loss = loss + ((S[mine[:, None], mine] @ C - 2 * C) * C).sum()
    return loss


@torch.no_grad()
def _targets(
    held: CompressedTasks,
    old: Directions,
    of_task: list[Tensor],
    previous: CompressedTasks | None,
    x_star: Weights,
) -> Tensor:
    """Codes of x_j* under the new directions, from those under the old ones."""
    here_new, here_old = held.directions.encode(x_star), old.encode(x_star)
    BW, S = held.directions.cross(old), old.gram()
    rows = []
    for task, columns in enumerate(of_task):
        mine = held.columns(task)
        target = here_new[mine]
        if task < held.tasks - 1:
            assert previous is not None
            distance = previous.targets[task] - here_old[columns]
            gram = S[columns[:, None], columns]
            target = target + BW[mine[:, None], columns] @ _pinv(gram) @ distance
        rows.append(target)
    return torch.stack(rows)


def _pinv(gram: Tensor) -> Tensor:
    # Directions overlap, so that their Gram matrix may be singular; what is below single
    # precision's noise is taken as zero.
    return torch.linalg.pinv(gram.double(), rtol=1e-5, hermitian=True).to(gram)
