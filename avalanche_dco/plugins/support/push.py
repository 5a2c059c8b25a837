"""Step 2 of Algorithm 1 on a strategy's model."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from avalanche_dco.core.cone import TrajectoryEnds, has_direction, push
from avalanche_dco.plugins.support.checks import refuse_broken
from avalanche_dco.plugins.support.gradients import criterion_gradients, snapshot, trainable
from avalanche_dco.plugins.support.reporting import progress_bar

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def push_into_cone(
    strategy: SupervisedTemplate,
    batches: Iterator[Any],
    length: int,
    *,
    averaged_points: int,
    theta: float,
) -> dict[str, Tensor]:
    """Let the optimizer travel on, and step into the cone.

    :param strategy: its model travels, with its optimizer.
    :param batches: what to travel on.
    :param length: number of steps of the optimizer.
    :param averaged_points: C, the points averaged at either end of the trajectory.
    :param theta: length of the push.
    :return: x_i*; the model is left where the trajectory ended.
    """
    parameters = trainable(strategy.model)
    if length == 0:
        return snapshot(parameters)
    ends = TrajectoryEnds(length, averaged_points)
    for batch in progress_bar(
        strategy, itertools.islice(batches, length), length, "DCO: push into the cone"
    ):
        gradients = criterion_gradients(strategy, batch, parameters)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        strategy.optimizer_step()
        ends.add(list(parameters.values()))
    refuse_broken(parameters, "In step 2 (push_epochs)", strategy)
    if length > 1 and not has_direction(ends.first, ends.last):
        warnings.warn(
            "The weights do not move in step 2, so there is no direction to push them in and "
            "they are left where training ended. The learning rate is next to nothing: if a "
            "scheduler brings it there, put LRSchedulerPlugin before DCO in the list of "
            "plugins, with reset_lr=True.",
            stacklevel=2,
        )
    return dict(zip(parameters, push(ends.first, ends.last, theta), strict=True))
