"""What a plugin keeps between experiences, declared once, and written as plain data.

Plain data is what ``torch.load(..., weights_only=True)`` accepts. States, their validation,
``memory_bytes`` and moves between devices follow from the declaration, see
:class:`avalanche_dco.plugins.support.state.PluginState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from avalanche_dco.core.checked import is_floating, require
from avalanche_dco.persistence.files import checksum as checksum_of

Plain = dict[str, Any]
"""Dictionaries, lists, tensors, numbers, strings and None, nested arbitrarily."""

Shapes = dict[str, list[int]]
"""The shapes of a model's parameters by name."""


class Form:
    """How a value is written as plain data, and checked and read again."""

    def plain(self, value: Any) -> Any:
        """The value as tensors, numbers, strings, lists and dictionaries."""
        return value

    def read(self, plain: Any, what: str, shapes: Shapes) -> Any:
        """The value again.

        :param plain: what should be the result of :meth:`plain`; anything else is a StateError.
        """
        raise NotImplementedError

    def tensors(self, value: Any) -> Iterable[Tensor]:
        """Tensors with as many bytes as the value."""
        return tensors_in(self.plain(value))


@dataclass(frozen=True)
class Kept:
    """One thing that a plugin keeps.

    :param form: how it is written and read; None, which stands for nothing yet, is not.
    :param attribute: where the plugin has it, the name by default; attributes of attributes, keys
        of dictionaries and indices of lists are separated by dots.
    :param like: another entry that has the same keys.
    :param derived: whether it is made from other entries, hence counted but not in a state.
    """

    name: str
    form: Form
    attribute: str = ""
    like: str = ""
    derived: bool = False

    def get(self, plugin: Any) -> Any:
        """The value that a plugin has now."""
        return reduce(_part, self._path, plugin)

    def put(self, plugin: Any, value: Any) -> None:
        """Give the plugin another value."""
        *path, last = self._path
        owner = reduce(_part, path, plugin)
        if isinstance(owner, dict | list):
            owner[_key(owner, last)] = value
        else:
            setattr(owner, last, value)

    def read(self, memory: Plain, shapes: Shapes) -> Any:
        """The value for the plugin, from the entries of a state."""
        plain = memory[self.name]
        value = self.form.read(plain, f"'{self.name}'", shapes)
        if self.like:
            same = _keys(plain) == _keys(memory[self.like])
            require(same, f"'{self.name}' and '{self.like}' do not have the same keys")
        return value

    @property
    def _path(self) -> list[str]:
        return (self.attribute or self.name).split(".")


@dataclass(frozen=True)
class Tensors(Form):
    """Tensors by name."""

    fits: Callable[[Tensor, str, Shapes], bool]

    def read(self, plain: Any, what: str, shapes: Shapes) -> Any:
        """The same tensors in a dictionary of its own."""
        require(isinstance(plain, dict), f"{what} has to be a dictionary of tensors")
        for name, value in plain.items():
            right = isinstance(name, str) and isinstance(value, Tensor)
            require(
                right and self.fits(value, name, shapes),
                f"{what} has an entry {name!r} that is not a tensor of the right kind and shape",
            )
        return dict(plain)


@dataclass(frozen=True)
class Stated(Form):
    """An object of the core with ``state`` and ``from_state``, which checks what it reads."""

    kind: Any

    def plain(self, value: Any) -> Plain:
        """Its state."""
        return value.state()

    def read(self, plain: Any, what: str, shapes: Shapes) -> Any:
        """The object, for parameters of these shapes."""
        return self.kind.from_state(plain, shapes)


class Directed(Stated):
    """One that has ``directions``, which have to be for parameters of the model; or None."""

    def read(self, plain: Any, what: str, shapes: Shapes) -> Any:
        """The object again."""
        value = None if plain is None else self.kind.from_state(plain)
        factors = {} if value is None else value.directions.factors
        for name, part in factors.items():
            fits = shapes.get(name) == list(part.shape)
            require(fits, f"{what} has directions for {name!r}, but no parameter fits them")
        return value


def is_parameter(value: Tensor, name: str, shapes: Shapes) -> bool:
    """Whether a tensor is shaped like a parameter, or as it was before one dimension grew."""
    if name not in shapes or not is_floating(value, [None] * len(shapes[name])):
        return False
    grown = [now - then for then, now in zip(value.shape, shapes[name], strict=True) if now != then]
    return len(grown) <= 1 and min(grown, default=0) >= 0


def _key(owner: Any, name: str) -> Any:
    return int(name) if isinstance(owner, list) else name


def _part(owner: Any, name: str) -> Any:
    return owner[_key(owner, name)] if isinstance(owner, dict | list) else getattr(owner, name)


def _keys(plain: Any) -> Any:
    return {name: _keys(part) for name, part in plain.items()} if isinstance(plain, dict) else None


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
