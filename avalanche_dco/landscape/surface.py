"""The loss at many perturbed parameter vectors at once."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from avalanche_dco.errors import SettingError
from avalanche_dco.landscape.trajectory import Criterion, FlatParameters
from avalanche_dco.plugins.support.isolation import model_kept

Batch = tuple[Tensor, Tensor]
Progress = Callable[[int], object]

_BISECTIONS = 16  # of a bracket a quarter as wide as it is far: more than six digits


class Batches(Protocol):
    """A DataLoader, or a list of ``(inputs, targets, ...)``: can be read again, has a length."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator: ...


@dataclass(frozen=True)
class SubspaceLoss:
    r"""Estimate of :math:`h(\sigma, V_s)` for several sigmas.

    >>> import torch
    >>> from avalanche_dco.landscape import SubspaceLoss
    >>> SubspaceLoss(torch.tensor([0.1, 0.4]), torch.tensor([0.01, 0.02])).mean
    tensor([0.1000, 0.4000])

    :param mean: shape (number of sigmas,).
    :param standard_error: of the mean, over the draws; same shape.
    """

    mean: Tensor
    standard_error: Tensor


class LossLandscape:
    r"""The loss of a model around its present parameters :math:`x^*`, for any criterion and data.

    Perturbed models are evaluated together (``torch.func.functional_call`` under ``vmap``), in
    eval mode, without touching the model.

    >>> import torch
    >>> from avalanche_dco.landscape import LossLandscape
    >>> batches = [(torch.randn(8, 3), torch.randint(2, (8,)))]
    >>> landscape = LossLandscape(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), batches)
    >>> landscape.loss_at(torch.tensor([[0.0, 0.0], [1.0, -1.0]]), torch.eye(8)[:2]).shape
    torch.Size([2])

    :param model: the model, at :math:`x^*`; its trainable parameters are copied here.
    :param criterion: ``criterion(outputs, targets)``, the mean over the samples of a batch.
    :param batches: the data :math:`\zeta`: a DataLoader or a list of ``(inputs, targets, ...)``.
    :param chunk_size: how many perturbed models are evaluated together; more need more memory.
    """

    def __init__(
        self, model: nn.Module, criterion: Criterion, batches: Batches, *, chunk_size: int = 32
    ):
        if getattr(criterion, "reduction", "mean") != "mean":
            raise SettingError(
                f"The criterion has reduction={criterion.reduction!r}; losses of batches are "  # type: ignore[attr-defined]
                "averaged by their sizes, so use reduction='mean'."
            )
        if not hasattr(batches, "__len__") or len(batches) == 0:
            raise SettingError(
                "batches must have a length above 0 and be readable more than once: give a "
                "DataLoader or a list of (inputs, targets), not a generator."
            )
        if chunk_size < 1:
            raise SettingError(f"chunk_size={chunk_size} must be at least 1.")
        self.model = model
        self.criterion = criterion
        self.batches = batches
        self.chunk_size = chunk_size
        self.parameters = FlatParameters(model)
        self._origin = self.parameters.values()
        # Copies: a module may write to its buffers even in eval mode.
        self._constants = {
            name: tensor.detach().clone()
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
            if name not in self.parameters.shapes
        }
        self._batched = vmap(self._loss_of_one, in_dims=(0, None, None))

    def _loss_of_one(self, point: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        values = self.parameters.unflatten(point) | self._constants
        return self.criterion(functional_call(self.model, values, (inputs,)), targets)

    def _data(self) -> Iterator[Batch]:
        device = self._origin.device
        for inputs, targets, *_ in self.batches:
            yield inputs.to(device), targets.to(device)

    def _directions(self, *directions: Tensor) -> Tensor:
        for direction in directions:
            if direction.shape != (self.parameters.size,):
                raise SettingError(
                    f"A direction has shape {tuple(direction.shape)}, but the model has "
                    f"{self.parameters.size} trainable parameters; give a vector of that length."
                )
        return torch.stack([direction.to(self._origin) for direction in directions])

    def loss_at(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """Losses at ``x* + coordinates @ directions`` on all the data, shape (P,), float64.

        The P x d matrix of offsets is never held as a whole.

        :param coordinates: shape (P, r).
        :param directions: shape (r, d).
        """
        directions = self._directions(*directions)
        total, samples = self._totals(coordinates.to(directions), directions, self._data())
        return total / samples

    def _totals(
        self, coordinates: Tensor, directions: Tensor, data: Iterable[Batch]
    ) -> tuple[Tensor, int]:
        """As :meth:`loss_at`, but summed over the samples of some batches; and their number."""
        total = torch.zeros(len(coordinates), dtype=torch.float64, device=directions.device)
        samples = 0
        with torch.no_grad(), model_kept(self.model, weights=True):
            self.model.eval()
            for inputs, targets in data:
                for rows in torch.arange(len(coordinates)).split(self.chunk_size):
                    points = self._origin + coordinates[rows] @ directions
                    losses = self._batched(points, inputs, targets)
                    total[rows] += len(targets) * losses.double()
                samples += len(targets)
        return total, samples

    def loss_on_plane(
        self, mean_gradient: Tensor, direction: Tensor, alphas: Tensor, betas: Tensor
    ) -> Tensor:
        r"""The paper's f (Eq. ob1) on a grid, shape (alphas, betas).

        .. math:: f(\alpha, \beta, v_i) = L(x^* - \alpha \bar g + \beta v_i; \zeta)

        :param mean_gradient: :math:`\bar g`, shape (d,).
        :param direction: :math:`v_i`, shape (d,).
        :param alphas: steps along :math:`-\bar g`.
        :param betas: steps along :math:`v_i`.
        """
        grid = torch.cartesian_prod(-alphas, betas)
        losses = self.loss_at(grid, self._directions(mean_gradient, direction))
        return losses.view(len(alphas), len(betas))

    def cone_boundary(
        self,
        mean_gradient: Tensor,
        direction: Tensor,
        alphas: Tensor,
        *,
        level: float,
        reach: float = 100.0,
        points: int = 40,
    ) -> Tensor:
        r"""Distance along :math:`\pm v_i` at which f first exceeds a level, shape (alphas, 2).

        The first column is along :math:`-v_i`, the second along :math:`+v_i`. A geometric grid that
        ends at ``reach`` brackets the first crossing, bisection locates it. Zero where f exceeds
        the level at :math:`\beta = 0` already; infinite where it does not up to ``reach``.

        :param mean_gradient: :math:`\bar g`, shape (d,).
        :param direction: :math:`v_i`, shape (d,).
        :param alphas: steps along :math:`-\bar g`.
        :param level: the loss that counts as the wall of the cone.
        :param reach: the largest :math:`|\beta|` looked at.
        :param points: points of the grid per side, from ``reach / 10000`` to ``reach``.
        """
        plane = self._directions(mean_gradient, direction)
        alphas = alphas.double()
        side = torch.logspace(-4, 0, points, dtype=torch.float64) * reach
        betas = torch.cat([torch.zeros(1, dtype=torch.float64), side])
        ways = []
        for sign in (-1.0, 1.0):
            losses = self._losses_on_rows(plane, alphas, sign * betas.expand(len(alphas), -1))
            low, high = torch.stack([bracket(betas, row, level) for row in losses]).unbind(1)
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                finite = middle.nan_to_num(posinf=0.0)
                above = ~(
                    self._losses_on_rows(plane, alphas, sign * finite[:, None])[:, 0] <= level
                )
                low, high = torch.where(above, low, middle), torch.where(above, middle, high)
            ways.append((low + high) / 2)
        return torch.stack(ways, dim=1)

    def _losses_on_rows(self, plane: Tensor, alphas: Tensor, betas: Tensor) -> Tensor:
        """Evaluate f at alphas (A,), each with betas (A, B) of its own; shape (A, B)."""
        pairs = torch.stack([-alphas[:, None].expand_as(betas), betas], dim=-1)
        return self.loss_at(pairs.flatten(0, 1), plane).view_as(betas).cpu()

    def loss_in_subspace(
        self,
        basis: Tensor,
        sigmas: Sequence[float],
        *,
        draws: int = 3000,
        spread_draws: bool = True,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> SubspaceLoss:
        r"""The paper's h (Eq. projection) for one subspace and several sigmas.

        .. math::
            h(\sigma, V_s) = E_{\delta \sim N(0, \frac{\sigma^2}{d} I)} L(x^* + V_s V_s^T \delta)

        For orthonormal columns :math:`V_s^T \delta` is itself
        :math:`N(0, \frac{\sigma^2}{d} I)` in as many dimensions as there are columns, so only
        these coordinates are drawn. All sigmas share the same draws (scaled), which makes the
        curves comparable.

        h is linear in the data: :math:`h(\zeta) = \sum_b \frac{n_b}{n} h(\zeta_b)` over the
        batches b. With ``spread_draws`` every batch gets its own share of the draws: unbiased
        for all the data, and as many times cheaper as there are batches. Without, every draw is
        evaluated on all the data.

        :param basis: :math:`V_s`, shape (d, w), orthonormal columns.
        :param sigmas: the values of sigma.
        :param draws: how many perturbations, in total.
        :param spread_draws: share the draws out among the batches.
        :param generator: source of the draws, on the CPU.
        :param progress: called with the number of draws advanced.
        """
        basis = self._orthonormal(basis)
        batches = len(self.batches) if spread_draws else 1
        if draws < 2 * batches:
            raise SettingError(
                f"draws={draws} over {batches} batch(es): each needs 2 or more for a standard "
                "error. Use more draws, larger batches, or spread_draws=False."
            )
        scale = torch.tensor(list(sigmas), dtype=torch.float64) / math.sqrt(self.parameters.size)
        normal = torch.randn(draws, basis.shape[1], generator=generator).to(basis)
        # Strata: draws, and the batches that each of them is evaluated on.
        strata: Iterable[tuple[Tensor, Iterable[Batch]]] = [(normal, self._data())]
        if spread_draws:
            strata = zip(normal.tensor_split(batches), ([b] for b in self._data()), strict=True)
        mean, variance = torch.zeros(2, len(scale), dtype=torch.float64)
        samples = 0
        for share, data in strata:
            scaled = torch.cat([s * share for s in scale.to(basis)])
            total, seen = self._totals(scaled, basis.T, data)
            by_scale = total.cpu().view(len(scale), -1)
            mean += by_scale.mean(1)
            variance += by_scale.var(1) / len(share)
            samples += seen
            if progress is not None:
                progress(len(share))
        return SubspaceLoss(mean / samples, variance.sqrt() / samples)

    def _orthonormal(self, basis: Tensor) -> Tensor:
        rows = self._directions(*basis.T)
        wide = rows.double()
        error = (wide @ wide.T - torch.eye(len(rows), device=rows.device)).abs().max()
        if error > 1e-4:
            raise SettingError(
                f"The columns of the basis are not orthonormal (off by {error:.1e}), so V V^T is "
                "not a projection; use torch.linalg.qr(basis)[0]."
            )
        return rows.T


def bracket(betas: Tensor, losses: Tensor, level: float) -> Tensor:
    """The two neighbouring betas between which a curve first exceeds a level, shape (2,).

    (0, 0) if it does so at once, (infinity, infinity) if it never does.

    :param betas: ascending, from 0.
    :param losses: the curve at these betas; not a number counts as above.
    :param level: what is to be exceeded.
    """
    above = (~(losses <= level)).nonzero()
    if len(above) == 0:
        return betas.new_full((2,), math.inf)
    i = int(above[0])
    return torch.stack([betas[max(i - 1, 0)], betas[i]])
