"""Checks of a state's structure, made before anything is built from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from torch import Tensor

from avalanche_dco.errors import StateError


def require(right: bool, wrong: str) -> None:
    """Raise a :class:`StateError` unless a part of a state is as it has to be."""
    if not right:
        raise StateError(
            f"The state is not one that state_dict returned: {wrong}. Nothing of it was loaded; "
            "use an unchanged copy."
        )


def entries(state: Any, names: Iterable[str], what: str) -> list[Any]:
    """The values of a dictionary that has these entries and no others, in their order."""
    wanted = list(names)
    require(
        isinstance(state, dict) and state.keys() == set(wanted),
        f"{what} has to be a dictionary of {', '.join(wanted)}",
    )
    return [state[name] for name in wanted]


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_shape(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of sizes."""
    return isinstance(value, list) and all(is_count(size) for size in value)


def is_floating(value: Any, shape: Sequence[int | None]) -> TypeGuard[Tensor]:
    """Whether a value is a tensor of real floating-point numbers of a shape."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim == len(shape)
        and all(wanted in (None, size) for size, wanted in zip(value.shape, shape, strict=True))
    )
