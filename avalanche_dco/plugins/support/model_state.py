"""Look at a model, or at data, and leave everything as it was found."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from avalanche.models import DynamicModule
from torch import nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Give every module back the train or eval mode it had on entry.

    Module by module: a batch normalisation that was put into eval mode on purpose stays there.

    :param model: the model whose modes may be changed inside the block.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Give every module back the attributes it had on entry, and no others.

    Forward passes leave tensors behind: weights that old-style ``weight_norm`` computes, outputs
    that a model keeps to look at.

    :param model: the model that is called inside the block.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, kept in attributes:
            vars(module).clear()
            vars(module).update(kept)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Rewind the generators of Python, NumPy and torch (every device) to where they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def model_kept(model: nn.Module, *, weights: bool) -> Iterator[None]:
    """Give a model back as it was on entry, also after an exception.

    Inside the block there are no gradients at first. Afterwards every module has its mode, and
    every buffer its value and its tensor: a module may bind a buffer to a new tensor, or register
    one, instead of writing to the old one. The parameters have their gradients back.

    :param model: the model that may be used, and changed, inside the block.
    :param weights: whether the parameters are put back like the buffers, or stay as they become.
    """
    tables: list[dict[str, Any]] = [module._buffers for module in model.modules()]
    if weights:
        tables += [module._parameters for module in model.modules()]
    bound = [(table, dict(table)) for table in tables]
    tensors = {tensor for table in tables for tensor in table.values() if tensor is not None}
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    # Gradients are replaced within, never written to: the old tensors may be kept by reference.
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with modes_kept(model):
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
    """Whether a model gains parameters with the experiences it meets.

    :param model: one with or without Avalanche's dynamic modules.
    """
    return any(isinstance(module, DynamicModule) for module in model.modules())


def fits(before: Sequence[int], after: Sequence[int], may_grow: bool) -> bool:
    """Whether a parameter of one shape may have the other one later on.

    :param before: the earlier shape.
    :param after: the later one.
    :param may_grow: whether it may be larger, or has to be the same.
    """
    if not may_grow:
        return list(before) == list(after)
    return len(before) == len(after) and all(
        then <= now for then, now in zip(before, after, strict=True)
    )
