"""Step 3 of Algorithm 1 on a strategy's model: find directions, and report how it goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from avalanche_dco.core.autoencoder import fit_directions
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.eigendirections import eigendirections
from avalanche_dco.core.factors import Weights
from avalanche_dco.core.sampled import SampledDirections
from avalanche_dco.plugins.support.checks import warn_of_vanishing
from avalanche_dco.plugins.support.gradients import GradientSampler, LogitSampler
from avalanche_dco.plugins.support.reporting import Wait, progress_bar, publish
from avalanche_dco.plugins.support.sampling import BatchStream

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate


def sample_directions(
    strategy: SupervisedTemplate,
    constrained: dict[str, Parameter],
    k: int,
    x_star: Weights,
    wait: Wait,
    *,
    like_trained: bool = False,
    eigen: bool = False,
) -> tuple[Directions, Tensor] | None:
    """Make directions of gradients of single samples at x_i*, with dropout off.

    :param strategy: its model, and the data that it has adapted.
    :param constrained: the parameters to find directions for.
    :param k: number of directions.
    :param x_star: x_i*.
    :param wait: is told the pace.
    :param like_trained: whether they have to be of the length of trained directions.
    :param eigen: whether to take eigendirections instead of the gradients themselves.
    :return: as :func:`learn_directions`.
    """
    strategy.model.eval()
    dataset = strategy.adapted_dataset
    chosen = torch.randperm(len(dataset), device="cpu")[:k].tolist()
    stream = iter(BatchStream(dataset.subset(chosen), 1))
    sampler = LogitSampler(strategy, stream, constrained, k, x_star=x_star)
    sampled = SampledDirections(constrained, k)
    wait.expect(k, f"use a smaller k than {k}")
    with progress_bar(strategy, None, k, "DCO: sample directions") as bar:

        def observe(gradient: Weights) -> None:
            sampled.add(gradient)
            bar.update()
            wait.advance(strategy)

        sampler.sample(observe)
    found = sampled.finish()
    warn_of_vanishing(strategy, found.vanished)
    if found.vanished == 1:
        return None
    publish(strategy, "DCO_RankOneError", found.lost, strategy.clock.train_iterations)
    if eigen:
        found = replace(found, directions=eigendirections(found.directions, k))
    if like_trained:
        found = found.like_trained()
    return _of_reached(found.directions, sampler), found.shares()


def learn_directions(
    strategy: SupervisedTemplate,
    sampler: GradientSampler,
    directions: Directions,
    wait: Wait,
    *,
    updates: int,
    **settings: Any,
) -> tuple[Directions, Tensor] | None:
    """Fit directions to gradients of the task.

    :param strategy: its evaluator receives the reconstruction errors.
    :param sampler: samples the gradients.
    :param directions: where to start from.
    :param wait: is told the pace.
    :param updates: number of autoencoder updates at most.
    :param settings: other arguments of :func:`avalanche_dco.core.autoencoder.fit_directions`.
    :return: the directions and the shares of the gradients along them; None where all gradients
        vanish.
    """
    wait.expect(
        updates,
        "use directions='sampled', which need no training, or fewer autoencoder_updates than "
        f"{updates} or smaller gradients_per_update",
    )
    with progress_bar(strategy, None, updates, "DCO: learn directions") as bar:

        def report(error: float) -> None:
            wait.advance(strategy)
            bar.update()
            bar.set_postfix(error=f"{error:.3f}")

        fit = fit_directions(
            directions, sampler.sample, updates=updates, on_update=report, **settings
        )
    for update, error in enumerate(fit.errors):
        publish(strategy, "DCO_AutoencoderError", error, update)
    warn_of_vanishing(
        strategy,
        fit.vanished,
        "If training has converged until the criterion's gradients vanish, use "
        "gradient_source='logits'.",
    )
    if fit.vanished == 1:
        return None
    return _of_reached(directions, sampler), fit.shares


def _of_reached(directions: Directions, sampler: GradientSampler) -> Directions:
    """A head that this task does not use has no gradient, hence no part in its directions."""
    used = {name: f for name, f in directions.factors.items() if name in sampler.reached}
    return Directions(directions.k, used)


def decreasing_weights(names: Iterable[str]) -> dict[str, float]:
    """L for the parameters of the first of L layers, L - 1 for those of the second, ..., 1.

    :param names: the parameters, in the order of the model; those of one module are one layer.
    """
    modules = {name: name.rpartition(".")[0] for name in names}
    layers = list(dict.fromkeys(modules.values()))
    return {name: float(len(layers) - layers.index(module)) for name, module in modules.items()}
