"""Cells and rows of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from benchmarks.methods import BOUND, REPLAY
from benchmarks.report.comparing import DECIMALS, Entry
from benchmarks.report.document import Cell, Section

NONE = "–"
"""What a cell says where there is nothing to say."""
_SECTIONS = {
    "": "",
    REPLAY: "replay: keeps data of earlier tasks",
    BOUND: "bound: has the data of all tasks at hand",
}


def in_sections(
    lines: Mapping[str, Entry | None], row: Callable[[str], list[Cell]]
) -> list[Section]:
    """Rows under the title of their mark, those without one first.

    :param lines: label and entry of every row; no entry for what was not run.
    :param row: makes a row of a label.
    """
    sections = []
    for mark, title in _SECTIONS.items():
        labels = [label for label, entry in lines.items() if (entry.mark if entry else "") == mark]
        if labels:
            sections.append(Section(title, [row(label) for label in labels]))
    return sections


def statistic_cell(
    mean: float,
    spread: float,
    count: int,
    *,
    decimals: int = DECIMALS,
    sign: str = "",
    best: bool = False,
) -> Cell:
    """A mean with its spread, if there is one.

    :param mean: the value.
    :param spread: standard deviation or error.
    :param count: how many values it is of.
    :param decimals: how many are shown.
    :param sign: ``+`` to show it always.
    :param best: whether it is the lowest of its column.
    """
    known = count > 1 and math.isfinite(spread)
    return Cell(
        number(mean, decimals, sign), f"± {number(spread, decimals)}" if known else "", best
    )


def number(value: float, decimals: int = DECIMALS, sign: str = "") -> str:
    """With a true minus sign, and none before a zero.

    :param value: the number; NaN if there is none.
    :param decimals: how many are shown.
    :param sign: ``+`` to show it always.
    """
    if not math.isfinite(value):
        return NONE
    rounded = round(value, decimals) + 0.0
    return f"{rounded:{sign},.{decimals}f}".replace("-", "−")
