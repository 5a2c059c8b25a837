"""Use a model, an optimizer or data inside a callback, and leave everything as it was found."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.models import DynamicModule
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.templates import SupervisedTemplate
from torch import nn

Shapes = Mapping[str, Sequence[int]]
"""The shapes of parameters by name."""

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
    kept = {name: getattr(strategy, name) for name in _STRATEGY_STATE if hasattr(strategy, name)}
    seed = int(torch.randint(2**31, (), device="cpu"))
    try:
        with (
            _generators_kept(strategy.dataloader),
            model_kept(strategy.model, weights=False),
            _fresh_optimizer_state(strategy.optimizer),
            random_state_kept(),
        ):
            RNGManager.set_random_seeds(seed)
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
def random_state_kept() -> Iterator[None]:
    """Rewind the generators of Python, NumPy, torch and the user to where they were."""
    state = RNGManager.__getstate__()
    try:
        yield
    finally:
        RNGManager.__setstate__(state)


@contextmanager
def model_kept(model: nn.Module, *, weights: bool) -> Iterator[None]:
    """Restore a model on exit and after an exception.

    Inside the block there are no gradients at first. Afterwards every module has its mode and its
    other attributes, and every buffer its value and its tensor: a module may bind a buffer to a new
    tensor, register one, or keep what it has computed. The parameters have their gradients back.
    """
    tables = [table for m in model.modules() for table in (vars(m), m._buffers, m._parameters)]
    bound = [(table, dict(table)) for table in tables]
    tensors = {*model.buffers(), *(model.parameters() if weights else ())}
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    # Gradients are replaced within, never written to: the old tensors may be kept by reference.
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for table, entries in bound:
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for tensor, value in values:
                # A constant may be a tensor that cannot be written to, such as an expanded one.
                if tensor.layout != torch.strided or not torch.equal(tensor, value):
                    tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def grows_by_itself(model: nn.Module) -> bool:
    """Whether a model gains parameters with the experiences it meets."""
    return any(isinstance(module, DynamicModule) for module in model.modules())


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """The shapes of a model's parameters by name."""
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def difference(
    before: Shapes, after: Shapes, *, may_grow: bool, when: tuple[str, str]
) -> str | None:
    """How a model differs from what it was, other than by growing if it may; None if not."""
    for name in before if may_grow else {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old is None or new is None or not _fits(old, new, may_grow):
            facts = [
                f"is missing {where}" if shape is None else f"has shape {shape} {where}"
                for shape, where in zip((old, new), when, strict=True)
            ]
            return f"parameter '{name}' {' and '.join(facts)}"
    return None


def _fits(before: Sequence[int], after: Sequence[int], may_grow: bool) -> bool:
    return before == after or (
        may_grow and len(before) == len(after) and all(map(operator.le, before, after))
    )
