"""Run more training inside a callback and leave no trace of it but the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.plugins.support.model_state import model_kept, random_state_kept

_STRATEGY_STATE = ("dataloader", "mbatch", "mb_output", "loss", "_stop_training")


@contextmanager
def isolated(strategy: SupervisedTemplate) -> Iterator[None]:
    """Within, the model may be trained with ``strategy.optimizer`` from a fresh state.

    Afterwards everything but the parameters' values is as before: buffers (such as BatchNorm's
    running statistics), gradients, train/eval modes, the optimizer's state and settings, the
    strategy's mini-batch and loss, and the random generators, its loader's own among them. The
    global ones take their course from one number drawn from torch's generator: what follows does
    not depend on how much randomness was used within, and yet two experiences do not see the same
    random numbers.
    """
    with (
        _attributes_kept(strategy),
        _generators_kept(strategy.dataloader),
        model_kept(strategy.model, weights=False),
        _fresh_optimizer_state(strategy.optimizer),
        _own_randomness(),
    ):
        yield


@contextmanager
def _attributes_kept(strategy: SupervisedTemplate) -> Iterator[None]:
    kept = {name: getattr(strategy, name) for name in _STRATEGY_STATE if hasattr(strategy, name)}
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(strategy, name, value)


@contextmanager
def _generators_kept(loader: Any) -> Iterator[None]:
    """Rewind random generators that a loader has for itself."""
    places = (
        getattr(loader, "generator", None),
        getattr(getattr(loader, "sampler", None), "generator", None),
        getattr(loader, "loader_kwargs", {}).get("generator"),
    )
    states = [(place, place.get_state()) for place in places if place is not None]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def _fresh_optimizer_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    state = optimizer.state
    settings: list[dict[str, Any]] = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    optimizer.state = defaultdict(dict)
    try:
        yield
    finally:
        optimizer.state = state
        for group, kept in zip(optimizer.param_groups, settings, strict=True):
            group.update(kept)


@contextmanager
def _own_randomness() -> Iterator[None]:
    seed = int(torch.randint(2**31, (), device="cpu"))
    with random_state_kept():
        RNGManager.set_random_seeds(seed)
        yield
