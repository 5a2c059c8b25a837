"""DCO-COMP: all experiences share one memory of constant size."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor

from avalanche_dco.core.compressed_tasks import CompressedTasks
from avalanche_dco.core.compression import Loss, Start, compress
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights, bytes_of_directions, common_dtype, matrix_shape
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.errors import SettingError
from avalanche_dco.plugins.base import DirectionConstrainedPlugin
from avalanche_dco.plugins.support.kept import Directed, Kept
from avalanche_dco.plugins.support.reporting import publish
from avalanche_dco.plugins.support.settings import check_count, check_number

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


class DCOCompPlugin(DirectionConstrainedPlugin):
    """Compressed Direction-Constrained Optimization (DCO-COMP): Algorithm 1 with compression.

    Like :class:`avalanche_dco.DCOPlugin`, whose arguments it shares, but all experiences together
    keep ``k`` directions: ``k // 2`` that they share and ``k // 2i`` of their own for each of i
    experiences. Memory, and the time of a training step, do not grow with the number of
    experiences; only ``k`` targets per experience, numbers, are added (with ``couple_layers=False``
    as many for each parameter of the model as it is then). A head that one experience alone uses
    has a part in this experience's own directions only, so that many heads take the memory of one.

    Beside DCO's metrics it reports ``DCO_CompressionError``, the relative reconstruction error of
    each compression update.

    :param k: number of directions kept, for all experiences together. The paper has 1000 for
        Permuted MNIST, 400 for Split MNIST and 2000 for Split CIFAR-100.
    :param new_task_k: number of directions learned for a new experience before they are
        compressed; ``k // 4`` by default. Tasks that have much in common do better with more, up to
        ``k``.
    :param compression_updates: number of updates of the compression.
    :param compression_lr: learning rate of its Adam.
    :param compression_start: where a compression starts: from the columns that are there, with
        the shared ones staying shared (``"previous"``) or those with the largest part in the loss
        becoming shared (``"largest"``), or from small random numbers (``"noise"``).
    :param compression_loss: what a compression is to reconstruct: directions weighted by the share
        of their task's gradients along them (``"gradients"``), or all alike (``"directions"``),
        which is the paper's Eq. (dco_comp1) and forgets more.
    :param settings: all other arguments of :class:`avalanche_dco.DCOPlugin`.
    """

    _KEEPS = (
        Kept("tasks", Directed(CompressedTasks), "_tasks"),
        Kept("penalty", Directed(Penalty), derived=True),  # its directions are those of the tasks
    )
    _SETTINGS = (*DirectionConstrainedPlugin._SETTINGS, "compression_loss")
    _BINDING = (*DirectionConstrainedPlugin._BINDING, "k", "compression_loss")

    def __init__(
        self,
        k: int = 1000,
        *,
        new_task_k: int | None = None,
        compression_updates: int = 50,
        compression_lr: float = 2e-2,
        compression_start: Start = "previous",
        compression_loss: Loss = "gradients",
        **settings: Any,
    ):
        super().__init__(k, **settings)
        check_count(
            "k", k, at_least=2, meaning="the number of directions, of which half are shared"
        )
        if new_task_k is not None:
            check_count(
                "new_task_k",
                new_task_k,
                at_least=1,
                meaning="the number of directions learned for a new experience",
            )
        check_count(
            "compression_updates",
            compression_updates,
            at_least=1,
            meaning="the number of updates of the compression",
        )
        check_number(
            "compression_lr", compression_lr, above_low=True, meaning="Adam's learning rate"
        )
        if compression_start not in get_args(Start):
            raise SettingError(
                f"compression_start={compression_start!r} must be 'previous' (shared columns stay "
                "shared), 'largest' (the columns with the largest part in the loss are shared) or "
                "'noise' (small random numbers)."
            )
        if compression_loss not in get_args(Loss):
            raise SettingError(
                f"compression_loss={compression_loss!r} must be 'gradients' (directions count by "
                "the share of their task's gradients along them) or 'directions' (all count by "
                "their length, as in the paper)."
            )
        self.new_task_k = max(1, k // 4) if new_task_k is None else new_task_k
        self.compression_updates = compression_updates
        self.compression_lr = compression_lr
        self.compression_start: Start = compression_start
        self.compression_loss: Loss = compression_loss

        # Kept between experiences.
        self._tasks: CompressedTasks | None = None

    @property
    def _k_to_learn(self) -> int:
        return self.new_task_k

    def _stored(
        self, strategy: SupervisedTemplate, directions: Directions, shares: Tensor, x_star: Weights
    ) -> dict[str, Any]:
        """Step 4: compress and update {W^1, ..., W^i} by Eq. (dco_comp1) and (dco_comp2)."""
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
        if tasks.own == 0:
            warnings.warn(
                f"k={self.k} is less than two directions for each of {tasks.tasks} "
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
        tasks = 1 + (0 if self._tasks is None else self._tasks.tasks)
        shared, own = self.k // 2, self.k // (2 * tasks)
        columns = shared + tasks * own
        held = Directions(0, {}) if self._tasks is None else self._tasks.directions
        parameters = held.like() | dict(constrained)  # frozen ones keep their part
        targets = self._targets_each(parameters)
        numbers = tasks * targets * (shared + own)
        if self.compression_loss == "gradients":
            numbers += columns  # shares

        def has_one_user(name: str) -> bool:
            """If heads are used once; that of the first task is known after the second."""
            if name in held.factors and name in constrained:
                return held.factors[name].start > 0
            return tasks == 2 or (tasks > 2 and name not in held.factors)

        for name, parameter in parameters.items():
            if has_one_user(name):
                of_column = sum(matrix_shape(parameter.shape)) + (not self.couple_layers)
                numbers -= (columns - own) * of_column
        size = common_dtype(parameters).itemsize
        return bytes_of_directions(parameters, columns, targets) + numbers * size

    def _restored(self) -> None:
        self._keep(self._tasks)
