r"""DCO-COMP: the directions of all tasks in constant memory, Eq. (dco_comp1) and (dco_comp2).

After task i there are k/2 *shared* directions, which belong to every task, and floor(k / 2i) *own*
directions per task. Task j's compressed autoencoder is :math:`B_j = (\bar W, \tilde W^j)`. All of
them are fitted together to the directions :math:`W^j` that the tasks had before,

.. math:: L_{mse} = \sum_j || B_j B_j^T W^j - W^j ||^2
        = \sum_j ||W^j||^2 - 2 ||C_j||^2 + tr(C_j^T S_j C_j),
        \quad C_j = B_j^T W^j, \quad S_j = B_j^T B_j.

**Weights.** As it stands, this loss counts a direction by its length. What should survive is what
the task's gradients lie along, and lengths say little about that: of two directions of about the
same length, one may have a tenth of the gradients along it and the other next to nothing. So each
direction is weighted by the share of its task's gradients along it,
:math:`s_p = ||w_p^T G||^2 / ||G||^2`, and every task counts alike:

.. math:: L = \frac{1}{i} \sum_j \sum_p q_p || B_j B_j^T w_p^j - w_p^j ||^2,
        \quad q_p = s_p \Big/ \sum_p s_p ||w_p^j||^2.

One share per column is kept, of a shared column the mean over tasks. After a compression they are
those of gradients :math:`\sum_p c_p w_p` with uncorrelated codes,
:math:`s'_i = \sum_p s_p (b_i^T w_p)^2`. Without shares, all directions have the same weight: the
paper's loss, relative to :math:`\sum_j ||W^j||^2`.

With all columns side by side, B = (shared, own_1, ..., own_i), every C_j and S_j is a block of
``B^T W`` or ``B^T B``, and these are sums over parameters of products of small matrices
(:meth:`Directions.cross`). Neither the gradients nor anything of size k x d is needed. The products
over parameters cost the same after any number of tasks; only the small blocks, one per task, add
up.

**Heads.** A parameter that one task alone uses has a part in this task's own columns only, from the
second task on: all such parameters together take the memory of one task's. It does have a part in
the shared columns while these are fitted to its task for the first time. Training of other tasks
does not move the parameter, so that this part is a constant in the codes and can be left out of
them and of the targets.

**Targets.** The penalty of task j needs :math:`t_j = B_j^T x_j^*`, but x_j* is not kept; known are
its codes under the old directions, :math:`W_j^T x_j^*`. Of all weights with these codes, the ones
nearest to the present weights x are :math:`x + W_j S^+ (W_j^T x_j^* - W_j^T x)`, S the Gram matrix
of W_j. Their codes under B_j are the new targets. What x_j* had outside the span of W_j, task j
did not ask to keep. For a penalty that does not couple layers, the same is done for every layer by
itself.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from avalanche_dco.core.compressed_tasks import CompressedTasks, Layout, OldTasks
from avalanche_dco.core.compression_loss import lost_energy
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights
from avalanche_dco.errors import SettingError

Start = Literal["previous", "noise"]
Loss = Literal["gradients", "directions"]


def compress(
    previous: CompressedTasks | None,
    new: Directions,
    x_star: Weights,
    *,
    k: int,
    shares: Tensor | None = None,
    updates: int = 50,
    lr: float = 2e-2,
    rho: float = 100.0,
    start: Start = "previous",
    couple_layers: bool = True,
) -> tuple[CompressedTasks, list[float]]:
    """Take a new task's directions in with those of the previous tasks.

    :param previous: the tasks so far; None if the new one is the first.
    :param new: the new task's directions, any number of them.
    :param x_star: the new task's weights x_i*, where the model is now.
    :param k: number of columns to be held afterwards, for all tasks together.
    :param shares: the shares of the new task's gradients along each of its directions; None for
        the paper's loss, in which all directions count alike.
    :param updates: number of updates of Adam.
    :param lr: its learning rate.
    :param rho: factor on the loss, which is the relative reconstruction error.
    :param start: where to start from: the shared columns and, of every task's own, those with the
        largest part in the loss (``"previous"``), or small random numbers (``"noise"``).
    :param couple_layers: whether the penalty is to sum codes over parameters, as in the paper; the
        same for all tasks.
    :return: all tasks, and the relative reconstruction error before each update.
    """
    if previous is not None and previous.couple_layers != couple_layers:
        raise SettingError(
            f"The tasks so far have couple_layers={previous.couple_layers}, and the new one has "
            f"{couple_layers}. Give compress the same for every task."
        )
    old = OldTasks.of(previous, new, shares)
    tasks = len(old.columns)
    layout = Layout.of(k, tasks)
    if start == "noise":
        like = {name: x_star[name] for name in old.directions.factors}
        directions = Directions.random(like, layout.k)
    else:
        directions = _kept(
            old, layout, old_shared=0 if previous is None else previous.layout.shared
        )
    users = old.users() if tasks > 1 else {}
    if tasks > 2:
        known = {name: task for name, task in users.items() if name not in new.factors}
        directions = layout.confined(directions, known)
    directions, errors = _fitted(directions, layout, old, updates=updates, lr=lr, rho=rho)
    directions = layout.confined(directions, users)
    targets = _targets(
        directions,
        layout,
        old,
        None if previous is None else previous.targets,
        x_star,
        couple_layers=couple_layers,
    )
    held = CompressedTasks(
        directions, layout, targets, couple_layers, _shares(directions, layout, old)
    )
    return held, errors


def _kept(old: OldTasks, layout: Layout, old_shared: int) -> Directions:
    """The old columns to start from: of a task's own ones those with the largest part in the loss.

    Shared are those that were; at the first task those with the largest part among what its own
    columns leave over.
    """
    parts = old.directions.gram().diagonal()
    if old.shares is not None:
        parts = parts * old.shares

    def largest(columns: Tensor, n: int) -> Tensor:
        return columns[parts[columns].argsort(descending=True)[:n]]

    *of_previous, of_new = old.columns
    owns = [largest(columns[old_shared:], layout.own) for columns in of_previous]
    owns.append(largest(of_new, layout.own))
    if of_previous:
        shared = of_previous[0][:old_shared]
    else:
        shared = largest(of_new[~torch.isin(of_new, torch.cat(owns))], layout.shared)
    together = _padded(old.directions, shared, layout.shared)
    for columns in owns:
        together = together.cat(_padded(old.directions, columns, layout.own))
    return together


def _padded(old: Directions, columns: Tensor, n: int) -> Directions:
    """The given columns and, where there are fewer than n, small random ones."""
    taken = old.select(columns)
    if len(columns) == n:
        return taken
    return taken.cat(Directions.random(old.like(), n - len(columns)))


@torch.no_grad()
def _fitted(
    directions: Directions,
    layout: Layout,
    old: OldTasks,
    *,
    updates: int,
    lr: float,
    rho: float,
) -> tuple[Directions, list[float]]:
    """Minimise the loss over the shared and all own columns together."""
    optimizer = torch.optim.Adam(
        [tensor for f in directions.factors.values() for tensor in (f.U, f.V)], lr=lr
    )
    columns, weights = layout.columns(directions.device), old.weights()
    errors = []
    for _ in range(updates):
        lost = lost_energy(directions, columns, old, weights, rho)
        optimizer.step()
        errors.append(1 + lost.item())
    for f in directions.factors.values():
        f.U.grad = f.V.grad = None
    return directions, errors


@torch.no_grad()
def _shares(directions: Directions, layout: Layout, old: OldTasks) -> Tensor | None:
    """s'_i = sum_p s_p (b_i^T w_p)^2, of shared columns the mean over tasks."""
    if old.shares is None:
        return None
    squares = directions.cross(old.directions).square()
    of_tasks = torch.stack(
        [
            squares[mine[:, None], before] @ old.shares[before]
            for mine, before in zip(layout.columns(directions.device), old.columns, strict=True)
        ]
    )
    shared, own = of_tasks.split([layout.shared, layout.own], dim=1)
    return torch.cat([shared.mean(0), own.reshape(-1)])


@torch.no_grad()
def _targets(
    directions: Directions,
    layout: Layout,
    old: OldTasks,
    known: Tensor | None,
    x_star: Weights,
    *,
    couple_layers: bool,
) -> Tensor:
    """Codes of x_j* under the new directions, from those under the old ones.

    :param known: those under the old ones, of all tasks but the new one; None if it is the first.
    """
    of_tasks = layout.columns(directions.device)

    def follow(new: Directions, before: Directions, known: Tensor | None) -> Tensor:
        here_new, here_old = new.encode(x_star), before.encode(x_star)
        BW, S = new.cross(before), before.gram()
        rows = []
        for task, (mine, columns) in enumerate(zip(of_tasks, old.columns, strict=True)):
            target = here_new[mine]
            if known is not None and task < len(known):
                distance = known[task] - here_old[columns]
                gram = S[columns[:, None], columns]
                target = target + BW[mine[:, None], columns] @ _solved(gram, distance)
            rows.append(target)
        return torch.stack(rows)

    if couple_layers:
        return follow(directions, old.directions, known)
    of_parameters = []
    for number, name in enumerate(directions.factors):
        # Parameters that the new task has brought come last; earlier tasks have no part in them.
        row = known[:, number] if known is not None and number < known.shape[1] else None
        new, before = (d.of_parameter(name) for d in (directions, old.directions))
        of_parameters.append(follow(new, before, row))
    return torch.stack(of_parameters, dim=1)


def _solved(gram: Tensor, distance: Tensor) -> Tensor:
    """S^+ times a vector.

    Directions overlap, so that their Gram matrix may be singular; what is below single precision's
    noise is taken as zero.
    """
    values, vectors = torch.linalg.eigh(gram.double())
    codes = vectors.T @ distance.double()
    codes = torch.where(values > 1e-5 * values[-1], codes / values, 0)
    return (vectors @ codes).to(distance)
