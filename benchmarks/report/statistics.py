"""Mean and spread, computed and written in one way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

DECIMALS = 2
"""Of errors in %, in tables."""
NONE = "–"
"""What a cell says where there is nothing to say."""


class Statistic(NamedTuple):
    """Mean, sample standard deviation and number of values.

    :param mean: NaN if there are no values.
    :param spread: NaN where the number is below 2.
    """

    mean: float
    spread: float
    size: int

    def __str__(self) -> str:
        return self.written()

    def written(self, sign: str = "") -> str:
        """Mean ± spread, if there is one.

        :param sign: ``+`` to show the mean's always.
        """
        spread = f" ± {number(self.spread)}" if math.isfinite(self.spread) else ""
        return number(self.mean, sign=sign) + spread


def statistic(values: Iterable[float]) -> Statistic:
    """Mean and spread of the values that are finite."""
    known = pd.Series([value for value in values if math.isfinite(value)], dtype="float64")
    return Statistic(known.mean(), known.std(), len(known))


def number(value: float, decimals: int = DECIMALS, sign: str = "") -> str:
    """A number with some decimals, and no sign before a zero.

    :param value: the number; NaN if there is none.
    :param sign: ``+`` to show it always.
    """
    if not math.isfinite(value):
        return NONE
    return f"{round(float(value), decimals) + 0.0:{sign},.{decimals}f}"
