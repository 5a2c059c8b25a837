"""States of plugins with a wrong structure and a right checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from avalanche_dco.plugins.support.plain import Plain, checksum

_FORGED = ("settings", "parameters", "clock", "memory")


def forgeries(state: Plain) -> Iterator[tuple[str, Plain]]:
    """States of which no plugin can make anything, and what was done to each.

    Every part of the state in turn is left out, joined by another, or replaced by something of
    another type or shape. Values of settings are left alone: they only inform the reader.

    :param state: what a plugin's ``state_dict`` returned after at least one experience.
    """
    for name in _FORGED:
        for what, forged in _variants(state[name], name, inside=name != "settings"):
            content = {**state, name: forged}
            del content["checksum"]
            yield what, content | {"checksum": checksum(content)}


def _variants(value: Any, where: str, *, inside: bool = True) -> Iterator[tuple[str, Any]]:
    others: tuple[Any, ...] = ("text", 1.5, -1, [], {}, None)
    for other in others:
        if type(other) is not type(value) and not _may_be_none(where, other):
            yield f"{where} = {other!r}", other
    if isinstance(value, Tensor):
        for what, change in _TENSORS.items():
            if what != "complex" or "buffers" not in where:  # data may be
                yield f"{where}: {what}", change(value)
    if isinstance(value, dict):
        yield f"{where} with another entry", value | {"another entry": 0}
        for name in value:
            # A table of tensors for some of the parameters only is a possible state.
            if isinstance(name, str) and name.isidentifier():
                yield f"{where} without {name}", {n: v for n, v in value.items() if n != name}
    if isinstance(value, dict | list) and inside:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys:
            for what, forged in _variants(value[key], f"{where}.{key}"):
                changed = value.copy()
                changed[key] = forged
                yield what, changed


def _may_be_none(where: str, other: Any) -> bool:
    """Whether there may be nothing: before directions have been learned."""
    return other is None and where in ("memory.penalty", "memory.tasks", "memory.tasks.shares")


_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "one more": lambda tensor: torch.cat([tensor.reshape(-1, *tensor.shape[1:])] * 2),
    "another dimension": lambda tensor: torch.stack([tensor, tensor]),
    "complex": lambda tensor: tensor.to(torch.complex64),
}
