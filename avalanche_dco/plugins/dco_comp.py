"""DCO-COMP: all experiences share one memory of constant size."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from avalanche_dco.core.compressed_tasks import CompressedTasks, Layout
from avalanche_dco.core.compression import Loss, Start, compress
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.eigendirections import merge
from avalanche_dco.core.factors import Weights, bytes_of_directions, matrix_shape
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.support.direction_settings import DirectionKind, LayerWeights
from avalanche_dco.plugins.support.kept import Directed, Kept
from avalanche_dco.plugins.support.reporting import publish
from avalanche_dco.plugins.support.settings import authors, paper, setting

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

_OF_COMPRESSION = (
    "shrink_new_task_k",
    "compression_updates",
    "compression_lr",
    "compression_start",
    "compression_loss",
)
"""Arguments that matter only if directions are compressed by training."""


class DCOCompPlugin(DirectionConstrainedPlugin):
    """Compressed Direction-Constrained Optimization (DCO-COMP): Algorithm 1 with compression.

    Like :class:`avalanche_dco.DCOPlugin`, whose arguments it shares, but all experiences together
    keep ``k`` directions. Memory, and the time of a training step, do not grow with the number of
    experiences. By default the directions are computed in closed form.

    With the paper's compression (``directions="trained"``), ``k // 2`` of them are shared and
    ``k // 2i`` belong to each of i experiences; ``k`` numbers per experience, the targets, are
    added (``k`` for each parameter of the model with ``couple_layers=False``). A head that only one
    experience uses then belongs to this experience's own directions only, so many heads take the
    memory of one.

    >>> import torch
    >>> from avalanche.training.supervised import Naive
    >>> from avalanche_dco import DCOCompPlugin
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(64, hidden_size=50)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[DCOCompPlugin(k=1000)])

    Beside DCO's metrics it reports ``DCO_CompressionError``, the share of the directions' energy
    that is lost, or the relative reconstruction error of each compression update.
    """

    _COMPRESSES = True
    _KEEPS = (
        Kept("tasks", Directed(CompressedTasks), "_tasks"),
        Kept("penalty", Directed(Penalty), derived=True),  # its directions are those of the tasks
    )

    k: int = DirectionConstrainedPlugin.SETTINGS["k"].but(
        at_least=2,
        binding=True,
        published=authors(1000, split_mnist=400, split_cifar100=2000, among=(400, 1000, 2000)),
        meaning="number of directions kept, for all experiences together; half of those that are "
        "trained or sampled are shared.",
    )
    max_penalty_grad_norm: float | None = DirectionConstrainedPlugin.SETTINGS[
        "max_penalty_grad_norm"
    ].but(published=authors(20.0, mnist_fashion=2000.0, split_cifar100=10.0))
    rho: float = DirectionConstrainedPlugin.SETTINGS["rho"].but(
        published=authors(1.0, among=(100.0, 1000.0))
    )
    directions: DirectionKind = DirectionConstrainedPlugin.SETTINGS["directions"].but(
        binding=True,
        choices={
            **DirectionConstrainedPlugin.SETTINGS["directions"].choices,
            "eigen": "the k largest eigendirections, parameter by parameter, of all experiences "
            "together, in closed form, from gradients of the outputs of new_task_k samples at x* "
            "and the directions kept so far; for uncoupled layers",
        },
    )
    autoencoder_lr_decay: float = DirectionConstrainedPlugin.SETTINGS["autoencoder_lr_decay"].but(
        published=authors(0.99)
    )
    layer_weights: LayerWeights = DirectionConstrainedPlugin.SETTINGS["layer_weights"].but(
        published=authors("decreasing")
    )
    new_task_k: int | None = setting(
        default=None,
        at_least=1,
        none="k with directions='eigen', a quarter of k with others",
        published=authors(250, split_mnist=200),
        meaning="number of directions learned for a new experience before they are compressed. "
        "Tasks that have much in common do better with more, up to k.",
    )
    shrink_new_task_k: bool = setting(
        default=False,
        published=authors(True),
        meaning="whether later experiences learn fewer directions.",
        choices={
            False: "each learns new_task_k",
            True: "as in the authors' code, experience i = 1, 2, ... learns new_task_k // i, one "
            "at least",
        },
    )
    compression_updates: int = setting(
        default=50,
        at_least=1,
        published=authors(50),
        meaning="number of updates of the compression.",
    )
    compression_lr: float = setting(
        default=2e-2,
        above=0,
        published=authors(2e-2),
        meaning="learning rate of the compression's Adam.",
    )
    compression_start: Start = setting(
        default="previous",
        published=authors("noise"),
        meaning="where a compression starts.",
        choices={
            "previous": "from the columns that are there",
            "noise": "as in the authors' code, from small random numbers",
        },
    )
    compression_loss: Loss = setting(
        default="gradients",
        binding=True,
        published=paper("directions"),
        meaning="what a compression is to reconstruct.",
        choices={
            "gradients": "directions, weighted by the share of their task's gradients along them",
            "directions": "as in the paper's Eq. (dco_comp1), all directions alike",
        },
    )

    def __post_init__(self) -> None:
        """Nothing has been learned yet."""
        super().__post_init__()
        if self.directions == "eigen":
            self._refuse_without_effect(_OF_COMPRESSION, "directions in closed form")
        if self.new_task_k is None:
            self.new_task_k = self.k if self.directions == "eigen" else max(1, self.k // 4)
        self._tasks: CompressedTasks | None = None

    @property
    def _k_to_learn(self) -> int:
        assert self.new_task_k is not None
        learned = 0 if self._tasks is None else self._tasks.layout.tasks
        return (
            max(1, self.new_task_k // (learned + 1)) if self.shrink_new_task_k else self.new_task_k
        )

    def _stored(
        self, strategy: SupervisedTemplate, directions: Directions, shares: Tensor, x_star: Weights
    ) -> dict[str, Any]:
        """Step 4: compress and update {W^1, ..., W^i}, by Eq. (dco_comp1) and (dco_comp2)."""
        if self.directions == "eigen":
            tasks, lost = merge(self._tasks, directions, x_star, self.k)
            publish(strategy, "DCO_CompressionError", lost, strategy.clock.train_iterations)
            return {"_tasks": tasks, "penalty": tasks.penalty()}
        tasks, errors = compress(
            self._tasks,
            directions,
            x_star,
            k=self.k,
            shares=shares if self.compression_loss == "gradients" else None,
            updates=self.compression_updates,
            lr=self.compression_lr,
            rho=self.rho,
            start=self.compression_start,
            couple_layers=self.couple_layers,
        )
        if tasks.layout.own == 0:
            warnings.warn(
                f"k={self.k} is less than two directions for each of {tasks.layout.tasks} "
                "experiences: none has directions of its own any more. Use a larger k.",
                stacklevel=2,
            )
        for update, error in enumerate(errors):
            publish(strategy, "DCO_CompressionError", error, update)
        return {"_tasks": tasks, "penalty": tasks.penalty()}

    def _adapt_to(self, parameters: Weights) -> None:
        assert self._tasks is not None
        self._keep(self._tasks.adapted_to(parameters))

    def _keep(self, tasks: CompressedTasks | None) -> None:
        penalty = None if tasks is None else tasks.penalty()
        self._tasks, self.penalty = tasks, penalty  # both or, if interrupted, none

    def _bytes_expected(self, constrained: Weights) -> int:
        if self.directions == "eigen":
            return self._bytes_in_closed_form(constrained)
        if self._tasks is None:  # targets twice, in the tasks and in their penalty; weights, shares
            targets = self._targets_each(constrained) * self.k
            return bytes_of_directions(constrained, self.k, 2 * (targets + self.k))
        held, before = self._tasks.directions.factors, self._tasks.layout
        layout = Layout.of(self.k, before.tasks + 1)
        targets = self._targets_each(held.keys() | constrained.keys()) * self.k
        new = {name: p for name, p in constrained.items() if name not in held}
        rounded = max(1, layout.k / before.k)  # own columns are whole ones
        return int(rounded * self.memory_bytes) + bytes_of_directions(new, layout.own, targets)

    def _bytes_in_closed_form(self, constrained: Weights) -> int:
        """Directions as many as there are or k, their targets, the penalty's; weights."""
        held = {} if self._tasks is None else self._tasks.directions.factors
        unused = {name: f for name, f in held.items() if name not in constrained}
        sizes = [(min(self.k, p.numel()), p.shape) for p in constrained.values()]
        sizes += [(f.U.shape[1], f.shape) for f in unused.values()]
        numbers = sum(width * (sum(matrix_shape(shape)) + 1) for width, shape in sizes)
        return bytes_of_directions(constrained, 0, numbers + self.k * (len(sizes) + 1))

    def _restored(self) -> None:
        self._keep(self._tasks)
