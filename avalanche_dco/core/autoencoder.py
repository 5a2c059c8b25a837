r"""Step 3 of Algorithm 1: fit directions to a stream of gradients.

The reduced linear autoencoder has tied weights, AE(g) = W W^T g. Over m gradients, the columns of
G (d x m), with C = W^T G (k x m) and S = W^T W (k x k),

.. math:: ||AE(G) - G||^2 = ||G||^2 - 2 ||C||^2 + tr(C^T S C),

so the loss needs no decoder pass, and neither does its gradient. With y_j = 2 c_j - S c_j and the
gradient with respect to W folded onto the rank-one factors,

.. math::
    dU_l &= -2 \sum_j (G_l^j V_l) * y_j           + 2 U_l ((C C^T) * (V_l^T V_l)) \\
    dV_l &= -2 \sum_j (G_l^j)^T (U_l * y_j)       + 2 V_l ((C C^T) * (U_l^T U_l)).

The sums over j take one gradient at a time, which may be forgotten at once: nothing of size m x d
is ever held. The loss is homogeneous in G, so that the paper's normalisation of the batch,
``G / sqrt(||G||^2 / m)``, is one scalar applied at the end. With it and the paper's factor
``rho / m``, the loss is ``rho`` times the relative reconstruction error
``||AE(G) - G||^2 / ||G||^2``.

**Units.** Since the loss is homogeneous, a batch may be measured in any unit. A gradient with an
entry of more than ``_ROOM`` units sets a new one, its largest entry, and the sums so far are scaled
to it: whatever finite sizes gradients have, no square overflows. A gradient *vanishes* if the
squares of all its entries underflow. A batch starts with a unit so small that the first gradient
that does not vanish sets one; if none does, all of the batch counts as zero.

**Layer weights.** The loss may count the reconstruction of layer l with a weight a_l. With
:math:`C_a = \sum_l a_l W_l^T G_l` and :math:`S_a = \sum_l a_l W_l^T W_l` it is
:math:`||G||_a^2 - 2 <C_a, C> + tr(C^T S_a C)`; layer l then has y = a_l c + c_a - S_a c, and a
factor a_l on its terms in C C^T.

How much of the gradients lies along each direction, the *shares* ``||w_i^T G||^2 / ||G||^2``, is
known on the way: DCO-COMP compresses by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights
from avalanche_dco.errors import GradientError

_ROOM = 1e9
"""Units that an entry may have: sums of the squares of billions of them do not overflow."""


class DirectionAutoencoder:
    """A reduced linear autoencoder that is trained with Adam, in place.

    Call :meth:`observe` for each of m gradients, then :meth:`update`.

    :param directions: the directions to train; each parameter must have a part in all of them.
    :param lr: eta_a, Adam's learning rate.
    :param rho: factor on the loss, against gradients so small that Adam's epsilon matters.
    :param lr_decay: factor on the learning rate after every update.
    :param layer_weights: a_l, by parameter; None for 1 everywhere.
    """

    def __init__(
        self,
        directions: Directions,
        *,
        lr: float = 1e-2,
        rho: float = 100.0,
        lr_decay: float = 1.0,
        layer_weights: Mapping[str, float] | None = None,
    ):
        self.directions = directions
        self.rho, self._lr_decay = rho, lr_decay
        self.shares: Tensor | None = None
        """Shares of the gradients along each direction; None before the first update."""
        self.observed = 0
        """Number of gradients in all updates."""
        self.vanished = 0
        """Number of those among them that vanish."""
        weights = dict.fromkeys(directions.factors, 1.0) | dict(layer_weights or {})
        self._layers = [_Layer(name, directions, weights[name]) for name in directions.factors]
        self._weights = directions.zeros(0).new_tensor([layer.weight for layer in self._layers])
        self._optimizer = torch.optim.Adam(
            [tensor for layer in self._layers for tensor in (layer.U, layer.V)], lr=lr
        )
        self._start_batch()

    @torch.no_grad()
    def _start_batch(self) -> None:
        self._codes: list[Tensor] = []
        self._weighted: list[Tensor] = []
        self._energies: list[Tensor] = []
        self._units: list[Tensor] = []  # of each gradient's code and energies
        self._largest: list[Tensor] = []
        self._S = torch.stack([layer.start_batch() for layer in self._layers]).sum(0)
        self._vanishing = torch.finfo(self._S.dtype).tiny ** 0.5
        self._unit = self._S.new_tensor(self._vanishing / _ROOM)

    @torch.no_grad()
    def observe(self, gradient: Weights) -> None:
        """Take in one gradient g_j; it is not kept."""
        matrices = [layer.factors.matrix(gradient[layer.name]) for layer in self._layers]
        # Without a look at the numbers, for which a GPU would have to wait.
        extremes = [extreme for G in matrices for extreme in torch.aminmax(G)]
        largest = torch.stack(extremes).abs().max()
        unit = torch.where(largest > _ROOM * self._unit, largest, self._unit)
        shrinkage = (self._unit / unit).square()  # exactly 1 where the unit stays
        self._unit = unit
        parts = [layer.encode(G / unit) for layer, G in zip(self._layers, matrices, strict=True)]
        codes, energies = (torch.stack(part) for part in zip(*parts, strict=True))
        code, weighted = codes.sum(0), (self._weights[:, None] * codes).sum(0)
        Sc = self._S @ code
        for layer in self._layers:
            layer.accumulate(layer.weight * code + weighted - Sc, shrinkage)
        self._codes.append(code)
        self._weighted.append(weighted)
        self._energies.append(energies)
        self._units.append(unit)
        self._largest.append(largest)

    @torch.no_grad()
    def update(self) -> float:
        """One step of Adam on rho times the relative reconstruction error.

        :return: the relative reconstruction error of the observed gradients, before the step.
            Gradients that all vanish are reconstructed exactly: the error is 0, and the
            directions are left as they are.
        """
        energies = torch.stack(self._energies)  # m x l
        if torch.isnan(energies).any():  # of an infinite entry, too: its unit is infinite
            raise broken_gradient(
                layer.name
                for layer, energy in zip(self._layers, energies.sum(0), strict=True)
                if torch.isnan(energy)
            )
        vanished = int((torch.stack(self._largest) <= self._vanishing).sum())
        self.observed += len(energies)
        self.vanished += vanished
        if vanished == len(energies):
            self._start_batch()
            return 0.0
        scales = torch.stack(self._units) / self._unit
        C, C_a = (torch.stack(c, dim=1) * scales for c in (self._codes, self._weighted))  # k x m
        of_layers = (energies * scales.square()[:, None]).sum(0)
        energy, energy_a = of_layers.sum(), (self._weights * of_layers).sum()
        shares = C.square().sum(1) / energy
        # A running mean: one batch alone says little, and early directions are others.
        self.shares = shares if self.shares is None else self.shares.lerp(shares, 0.1)
        error = 1 - (2 * (C_a * C).sum() - (C * (self._S @ C)).sum()) / energy_a
        if not torch.isfinite(error):
            raise GradientError(
                "The autoencoder that learns the directions has diverged: its reconstruction "
                "error is infinite or not a number. Use a smaller autoencoder_lr."
            )
        CC = C @ C.T
        scale = self.rho / energy
        for layer in self._layers:
            layer.finish_batch(CC, scale)
        self._optimizer.step()
        for group in self._optimizer.param_groups:
            group["lr"] *= self._lr_decay
        self._start_batch()
        return float(error)

    def release(self) -> None:
        """Drop the gradients: the directions alone are kept."""
        for layer in self._layers:
            layer.U.grad = layer.V.grad = None


def broken_gradient(names: Iterable[str]) -> GradientError:
    """The error to raise if gradients are infinite or not a number."""
    return GradientError(
        f"The gradient of {', '.join(map(repr, names))} is infinite or not a number, so that no "
        "direction can be learned from it. Look for invalid inputs, a learning rate that is "
        "too high, or a criterion that divides by zero."
    )


class _Layer:
    """One parameter's factors, the running sums of its gradient, and the buffers they need."""

    def __init__(self, name: str, directions: Directions, weight: float):
        self.name, self.weight = name, weight
        self.factors = directions.factors[name]
        self.U, self.V = self.factors.U, self.factors.V
        self._dU, self._dV = torch.zeros_like(self.U), torch.zeros_like(self.V)
        self.U.grad, self.V.grad = self._dU, self._dV  # where Adam looks for them
        self._GV = torch.empty_like(self.U)
        self._scratch = torch.empty_like(self.U)

    def start_batch(self) -> Tensor:
        """Clear the sums; this layer's share of the Gram matrix S_a."""
        self._dU.zero_()
        self._dV.zero_()
        self._UU, self._VV = self.U.T @ self.U, self.V.T @ self.V
        return self.weight * (self._UU * self._VV)

    def encode(self, G: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's share of the code and of the energy; keeps G V for :meth:`accumulate`."""
        self._G = G
        torch.mm(self._G, self.V, out=self._GV)
        code = torch.mul(self._GV, self.U, out=self._scratch).sum(0)
        return code, self._G.square().sum()

    def accumulate(self, y: Tensor, shrinkage: Tensor) -> None:
        """Scale dU and dV to the unit of G, add -(G V) * y to dU and -G^T (U * y) to dV."""
        self._dU.mul_(shrinkage).addcmul_(self._GV, y, value=-1)
        torch.mul(self.U, y, out=self._scratch)
        self._dV.mul_(shrinkage).addmm_(self._G.T, self._scratch, alpha=-1)

    def finish_batch(self, CC: Tensor, scale: Tensor) -> None:
        """Add the terms in C C^T and scale: dU and dV are complete."""
        self._dU.addmm_(self.U, CC * self._VV, alpha=self.weight).mul_(2 * scale)
        self._dV.addmm_(self.V, CC * self._UU, alpha=self.weight).mul_(2 * scale)


def has_stopped_improving(errors: list[float], tolerance: float, window: int) -> bool:
    """Whether the error still falls.

    The error of a single update is noisy, as each sees other gradients. So the mean of the last
    ``window`` updates is compared with the mean of the ``window`` before.

    :param tolerance: the relative fall from one window to the next that counts as improvement.
    """
    if len(errors) < 2 * window:
        return False
    before, now = errors[-2 * window : -window], errors[-window:]
    return sum(before) - sum(now) <= tolerance * sum(before)


@dataclass
class Fit:
    """How directions were fitted.

    :param errors: the relative reconstruction error of each update.
    :param shares: the k shares ``||w_i^T G||^2 / ||G||^2`` of the last gradients along each
        direction, a running mean over about ten updates; zeros if all gradients vanish.
    :param vanished: the share of gradients that vanish.
    """

    errors: list[float]
    shares: Tensor
    vanished: float


def fit_directions(
    directions: Directions,
    sample: Callable[[Callable[[Weights], None]], None],
    *,
    updates: int = 200,
    tolerance: float | None = None,
    window: int = 20,
    on_update: Callable[[float], None] | None = None,
    **settings: Any,
) -> Fit:
    """Train ``directions`` in place on sampled gradients.

    :param sample: called once per update, with a function to which it hands the m gradients of that
        update, one at a time.
    :param tolerance: stop earlier once the error falls by less than this share from one window
        of updates to the next; None to make all updates.
    :param settings: arguments of :class:`DirectionAutoencoder`.
    """
    autoencoder = DirectionAutoencoder(directions, **settings)
    errors: list[float] = []
    for _ in range(updates):
        sample(autoencoder.observe)
        errors.append(autoencoder.update())
        if on_update is not None:
            on_update(errors[-1])
        if tolerance is not None and has_stopped_improving(errors, tolerance, window):
            break
    autoencoder.release()
    shares = autoencoder.shares
    return Fit(
        errors,
        directions.zeros(directions.k) if shares is None else shares,
        autoencoder.vanished / autoencoder.observed,
    )
