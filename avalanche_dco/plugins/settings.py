"""Checks of arguments, made when a plugin is built and not hours later."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from avalanche_dco.errors import SettingError


def check_count(name: str, value: Any, *, at_least: int, meaning: str) -> None:
    """Raise unless ``value`` is a whole number of at least ``at_least``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < at_least:
        raise SettingError(
            f"{name}={value!r} must be a whole number of at least {at_least}: it is {meaning}."
        )


def check_number(
    name: str,
    value: Any,
    *,
    meaning: str,
    low: float = 0.0,
    high: float = math.inf,
    above_low: bool = False,
) -> None:
    """Raise unless ``value`` is a finite number from ``low`` to ``high``.

    :param above_low: whether ``low`` itself is excluded.
    """
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if real and low <= value <= high and not (above_low and value == low):
        return
    bound = f"above {low:g}" if above_low else f"at least {low:g}"
    if high < math.inf:
        bound += f" and at most {high:g}"
    raise SettingError(f"{name}={value!r} must be a number {bound}: it is {meaning}.")
