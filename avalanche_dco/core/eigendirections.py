r"""Eigendirections of a parameter's penalty, and the penalties of many tasks in k of them.

The penalty of uncoupled layers is, for each parameter, a quadratic with the matrix
:math:`M = \sum_i w_i w_i^\top`, :math:`w_i = u_i v_i^\top`. M is close to a Kronecker product
(:mod:`avalanche_dco.core.kronecker`):

.. math:: M \approx \frac{S \otimes A}{tr M}, \qquad S = \sum_i ||v_i||^2 u_i u_i^\top, \quad
          A = \sum_i ||u_i||^2 v_i v_i^\top,

which has the same partial traces S and A. Its eigenvectors are rank-one matrices as well,
:math:`p_i q_j^\top` with eigenvalues :math:`s_i a_j / tr M`. The k largest of them say more about
samples that were not drawn than k samples do.

**Many tasks in k directions.** The penalties of all tasks together have the matrix
:math:`M = \sum_j M_j`, whose partial traces are the sums of theirs. So the k columns B of the
tasks so far, side by side with the columns W of a new task, have k eigendirections B' again, and
memory does not grow. This is not in the paper, which trains shared directions
(:mod:`avalanche_dco.core.compression`).

**Heads.** Parameters that the new task does not use, such as the heads of other tasks, have k
directions together, the largest of each. So many heads take the memory of one.

**Targets.** The quadratics of the tasks so far have their minimum where the codes are t. Together
with the new task's, whose minimum is x*, they have it at m' with

.. math:: M' m' = B t + W W^\top x^*, \qquad \text{hence} \qquad
          M' (m' - x^*) = B (t - B^\top x^*).

With :math:`M' \approx B' B'^\top` and orthogonal columns of B', the new targets are

.. math:: B'^\top m' = B'^\top x^* + (B'^\top B')^{-1} B'^\top B \, (t - B^\top x^*).

See :mod:`avalanche_dco.core.directions` for the index legend.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from avalanche_dco.core.compressed_tasks import CompressedTasks, Layout
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Factors, Weights


@torch.no_grad()
def eigendirections(directions: Directions, k: int) -> Directions:
    """The k largest eigendirections of every parameter's matrix.

    :param directions: any number of them.
    :param k: how many to return; a parameter with fewer has a part in as many as it has.
    """
    factors = {name: _eigen_of(f, k) for name, f in directions.factors.items()}
    return Directions(k, factors)


@torch.no_grad()
def merge(
    previous: CompressedTasks | None, new: Directions, x_star: Weights, k: int
) -> tuple[CompressedTasks, float]:
    """Take a new task's directions in with those of the previous tasks, in closed form.

    :param previous: what this function returned after the last task; None for the first.
    :param new: the new task's directions, any number of them.
    :param x_star: the new task's weights x*, where the model is now.
    :param k: number of directions to keep.
    :return: all tasks, and the share of the directions' energy that k of them do not hold.
    """
    old = {} if previous is None else previous.directions.factors
    together = new if previous is None else previous.directions.cat(new)
    unused = old.keys() - new.factors.keys()
    merged = Directions(
        k,
        {
            name: _first(old[name], max(1, k // len(unused))) if name in unused else _eigen_of(f, k)
            for name, f in together.factors.items()
        },
    )
    targets = []
    for number, (name, f) in enumerate(merged.factors.items()):
        target = _codes(f, x_star[name])
        if previous is not None and name in old:
            before = old[name]
            known = previous.targets[0, number, before.columns].double()
            target += _onto(f, before, known - _codes(before, x_star[name]))
        targets.append(pad(target, (0, k - len(target))).to(f.U))
    held = CompressedTasks(
        merged, Layout(shared=0, own=k, tasks=1), torch.stack(targets)[None], couple_layers=False
    )
    return held, 1 - float(_energy(merged) / _energy(together))


def _first(f: Factors, n: int) -> Factors:
    """The n largest of a parameter's eigendirections, which are sorted."""
    return Factors(f.U[:, :n].clone(), f.V[:, :n].clone(), f.shape)


def _eigen_of(f: Factors, k: int) -> Factors:
    """The k largest eigendirections of one parameter's matrix, the largest first."""
    U, V = f.U.double(), f.V.double()
    u, v = (torch.linalg.vector_norm(factor, dim=0) for factor in (U, V))
    trace = (u * v).square().sum()
    (s, P), (a, Q) = _eigen(U * v), _eigen(V * u)
    weights = torch.outer(s, a / trace.clamp(min=torch.finfo(trace.dtype).tiny)).flatten()
    largest = weights.topk(min(k, len(weights)))
    root = largest.values.pow(0.25)
    row, column = largest.indices // len(a), largest.indices % len(a)
    return Factors((P[:, row] * root).to(f.U), (Q[:, column] * root).to(f.V), f.shape)


def _eigen(X: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues that are not negative, and eigenvectors as columns, of X X^T.

    :param X: r x n, in double precision; with n < r, the smaller X^T X is decomposed.
    """
    if X.shape[0] <= X.shape[1]:
        values, vectors = torch.linalg.eigh(X @ X.mT)
        return values.clamp(min=0), vectors
    values, vectors = torch.linalg.eigh(X.mT @ X)
    values = values.clamp(min=0)
    return values, normalize(X @ vectors, dim=0)


def _codes(f: Factors, x: Tensor) -> Tensor:
    """W^T x of one parameter, in double precision: differences of codes are small."""
    return (f.matrix(x).double() @ f.V.double()).mul_(f.U).sum(0)


def _onto(new: Factors, before: Factors, codes: Tensor) -> Tensor:
    """(B'^T B')^-1 B'^T B times codes; 0 along directions that are noise."""
    squares = _squares(new)
    crossed = (new.U.T @ before.U).double() * (new.V.T @ before.V) @ codes
    noise = 8 * torch.finfo(new.U.dtype).eps * squares.max()
    return torch.where(squares > noise, crossed / squares, 0)


def _squares(f: Factors) -> Tensor:
    """||w_i||^2 of one parameter's part in every direction."""
    return f.U.double().square().sum(0) * f.V.double().square().sum(0)


def _energy(directions: Directions) -> Tensor:
    return torch.stack([_squares(f).sum() for f in directions.factors.values()]).sum()
