"""Values that ``torch.load(..., weights_only=True)`` accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from avalanche_dco.persistence.files import checksum as checksum_of

Plain = dict[str, Any]
"""Dictionaries, lists, tensors, numbers, strings and None, nested arbitrarily."""


def plain(value: Any) -> Any:
    """A setting, without sets, tuples and the number types of NumPy and torch."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value  # NumPy's and torch's numbers


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a plain value."""
    return [part for part in tree_leaves(value) if isinstance(part, Tensor)]


def moved(value: Any, device: torch.device) -> Any:
    """The same with all tensors on a device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), value)


def checksum(state: Plain) -> str:
    """A hash of everything in it, and of nothing else: the same on every device."""
    return checksum_of(_bytes_of(state))


def _bytes_of(value: Any) -> Iterator[bytes | memoryview]:
    """A value as bytes, so that no two different ones have the same."""
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {list(value.shape)} ".encode()
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
    elif isinstance(value, dict | list):
        parts = list(value.items()) if isinstance(value, dict) else value
        yield f"{type(value).__name__} {len(parts)} ".encode()
        for part in parts:
            yield from _bytes_of(list(part) if isinstance(value, dict) else part)
    else:
        text = repr(value)
        yield f"{type(value).__name__} {len(text)} {text} ".encode()
