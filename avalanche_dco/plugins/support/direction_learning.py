"""Step 3 of Algorithm 1 on a strategy's model: fit directions, and report how it goes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from avalanche_dco.core.autoencoder import fit_directions
from avalanche_dco.core.directions import Directions
from avalanche_dco.plugins.support.gradient_samplers import GradientSampler
from avalanche_dco.plugins.support.reporting import experience_number, progress_bar, publish

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def learn_directions(
    strategy: SupervisedTemplate,
    sampler: GradientSampler,
    directions: Directions,
    *,
    updates: int,
    **settings: Any,
) -> tuple[Directions, Tensor] | None:
    """Fit directions to gradients of the task.

    :param strategy: its evaluator is told the reconstruction errors.
    :param sampler: samples the gradients.
    :param directions: where to start from.
    :param updates: number of autoencoder updates at most.
    :param settings: other arguments of :func:`avalanche_dco.core.autoencoder.fit_directions`.
    :return: the directions and the shares of the gradients along them; None where all gradients are
        zero.
    """
    with progress_bar(strategy, None, updates, "DCO: learn directions") as bar:

        def report(error: float) -> None:
            bar.update()
            bar.set_postfix(error=f"{error:.3f}")

        fit = fit_directions(
            directions, sampler.sample, updates=updates, on_update=report, **settings
        )
    for update, error in enumerate(fit.errors):
        publish(strategy, "DCO_AutoencoderError", error, update)
    if not any(fit.errors):
        warnings.warn(
            f"Experience {experience_number(strategy)}: the gradients are zero everywhere, so "
            "there are no directions to remember and this experience will not be protected. "
            "If training has converged until the criterion's gradients vanish, use "
            "gradient_source='logits'.",
            stacklevel=2,
        )
        return None
    # A head that this task does not use has no gradient, hence no part in its directions.
    used = {name: f for name, f in directions.factors.items() if name in sampler.reached}
    return Directions(directions.k, used), fit.shares
