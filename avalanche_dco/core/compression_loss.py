"""The loss of a compression and its derivatives, from products of small matrices.

See :mod:`avalanche_dco.core.compression` for the formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from avalanche_dco.core.compressed_tasks import OldTasks
from avalanche_dco.core.directions import Directions


@torch.no_grad()
def lost_energy(
    directions: Directions,
    columns: list[Tensor],
    old: OldTasks,
    weights: list[Tensor],
    rho: float = 1.0,
) -> Tensor:
    r"""sum_j tr(Q_j (C_j^T S_j C_j - 2 C_j^T C_j)), the loss up to sum_j tr(Q_j W_j^T W_j).

    Its derivatives with respect to S_j and C_j are :math:`C_j Q_j C_j^\top` and
    :math:`2 (S_j C_j - 2 C_j) Q_j`. Summed over tasks they are P (k x k) and R, and

    .. math:: dU_l = 2 U_l (P * (V_l^\top V_l)) + U'_l (R * (V_l^\top V'_l))^\top

    with the old columns U', V'; with U and V exchanged for dV.

    :param directions: B, the compressed columns; ``grad`` of their factors is set.
    :param columns: for each task, the numbers of its columns.
    :param old: what they are fitted to.
    :param weights: for each task, the diagonal of Q_j.
    :param rho: factor on the derivatives.
    """
    grams = _Products(directions, directions)
    crosses = _Products(directions, old.directions)
    S, BW = grams.total, crosses.total
    P, R = torch.zeros_like(S), torch.zeros_like(BW)
    loss = S.new_zeros(())
    for mine, before, weight in zip(columns, old.columns, weights, strict=True):
        C = BW[mine[:, None], before]
        weighted = C * weight
        excess = (S[mine[:, None], mine] @ C).sub_(C, alpha=2)
        loss += (excess * weighted).sum()
        P[mine[:, None], mine] += weighted @ C.T
        R[mine[:, None], before] += excess.mul_(weight)
    for name, f in directions.factors.items():
        dU, dV = grams.derivatives(name, P)
        if name in old.directions.factors:
            of_old = crosses.derivatives(name, R)
            dU, dV = dU.add_(of_old[0]), dV.add_(of_old[1])
        f.U.grad, f.V.grad = dU.mul_(2 * rho), dV.mul_(2 * rho)
    return loss


class _Products:
    """W^T W' (:meth:`Directions.cross`), with the products that its derivatives need.

    :param directions: W.
    :param others: W'.
    """

    def __init__(self, directions: Directions, others: Directions):
        self._others = others
        self.total = directions.zeros((directions.k, others.k))
        self._of: dict[str, tuple[Tensor, Tensor, slice]] = {}
        for name, a in directions.factors.items():
            if name in others.factors:
                b = others.factors[name]
                UU, VV = a.U.T @ b.U, a.V.T @ b.V
                self.total[a.columns, b.columns] += UU * VV
                self._of[name] = UU, VV, a.columns

    def derivatives(self, name: str, of_total: Tensor) -> tuple[Tensor, Tensor]:
        """Those of one parameter's U and V, W' held fast.

        :param name: the parameter.
        :param of_total: the derivative with respect to W^T W'.
        """
        UU, VV, columns = self._of.pop(name)  # frees its memory
        b = self._others.factors[name]
        part = of_total[columns, b.columns]
        return b.U @ VV.mul_(part).T, b.V @ UU.mul_(part).T
