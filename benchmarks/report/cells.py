"""Cells and rows of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from benchmarks.methods import BOUND, REPLAY
from benchmarks.report.comparing import Entry
from benchmarks.report.document import Cell, Section
from benchmarks.report.statistics import DECIMALS, Statistic, number

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
    of: Statistic, *, decimals: int = DECIMALS, sign: str = "", best: bool = False
) -> Cell:
    """A mean with its spread, if there is one.

    :param of: what to show.
    :param decimals: how many are shown.
    :param sign: ``+`` to show it always.
    :param best: whether it is the lowest of its column.
    """
    spread = f"± {number(of.spread, decimals)}" if math.isfinite(of.spread) else ""
    return Cell(number(of.mean, decimals, sign).replace("-", "−"), spread, best)
