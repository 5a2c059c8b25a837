"""Step 3 of Algorithm 1 on a strategy's model: fit directions, and report how it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from avalanche_dco.core.autoencoder import fit_directions
from avalanche_dco.core.directions import Directions
from avalanche_dco.plugins.support.checks import warn_of_vanishing
from avalanche_dco.plugins.support.gradient_samplers import GradientSampler
from avalanche_dco.plugins.support.reporting import progress_bar, publish

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

    :param strategy: its evaluator receives the reconstruction errors.
    :param sampler: samples the gradients.
    :param directions: where to start from.
    :param updates: number of autoencoder updates at most.
    :param settings: other arguments of :func:`avalanche_dco.core.autoencoder.fit_directions`.
    :return: the directions and the shares of the gradients along them; None where all gradients
        vanish.
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
    warn_of_vanishing(strategy, fit.vanished)
    if fit.vanished == 1:
        return None
    # A head that this task does not use has no gradient, hence no part in its directions.
    used = {name: f for name, f in directions.factors.items() if name in sampler.reached}
    return Directions(directions.k, used), fit.shares


def decreasing_weights(names: Iterable[str]) -> dict[str, float]:
    """L for the parameters of the first of L layers, L - 1 for those of the second, ..., 1.

    :param names: the parameters, in the order of the model; those of one module are one layer.
    """
    modules = {name: name.rpartition(".")[0] for name in names}
    layers = list(dict.fromkeys(modules.values()))
    return {name: float(len(layers) - layers.index(module)) for name, module in modules.items()}
