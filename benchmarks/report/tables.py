"""The report's tables of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.cells import in_sections, statistic_cell
from benchmarks.report.comparing import Comparison, Entry, method_order
from benchmarks.report.document import Cell, Column, Section, Table
from benchmarks.report.paper_numbers import TABLE_1, TABLE_1_SOURCE
from benchmarks.report.statistics import NONE, number
from benchmarks.report.sweeps import Sweep
from benchmarks.runs.records import ERRORS

_TITLES = {"average": "average", "fwi": "FWI", "bwt": "BWT"}
_BEST = "Bold: lowest mean among the methods that keep no data (neither replay nor bound)."


def overview_table(comparisons: Sequence[Comparison]) -> Table:
    """The layout of the paper's Table 1: methods by benchmarks, average error.

    :param comparisons: those on the test split.
    """
    columns = [Column("method", numeric=False)]
    for comparison in comparisons:
        columns.append(Column("ours", comparison.title))
        if TABLE_1.get(comparison.published):
            columns.append(Column("paper", comparison.title))
    labels: dict[str, Entry | None] = {}
    for comparison in comparisons:
        for label, entry in _lines(comparison):
            labels[label] = labels.get(label) or entry
    labels = dict(sorted(labels.items(), key=_method_place))

    def row(label: str) -> list[Cell]:
        cells = [Cell(label)]
        for comparison in comparisons:
            entries = {entry.label: entry for entry in comparison.entries}
            entry = entries.get(label)
            method = entry.method if entry else label
            cells.append(_error_cell(comparison, entry, "average"))
            if TABLE_1.get(comparison.published):
                cells.append(_paper_cell(comparison, method))
        return cells

    return Table(
        f"Average error in % after the last task, lower is better: mean ± standard deviation over "
        f"seeds, beside {TABLE_1_SOURCE}. {_BEST}",
        columns,
        in_sections(labels, row),
    )


def error_table(comparison: Comparison) -> Table:
    """Average, FWI and BWT error of one comparison.

    :param comparison: what to show.
    """
    paper = bool(TABLE_1.get(comparison.published))
    columns = [Column("method", numeric=False), Column("seeds")]
    columns.append(Column("ours", "average error") if paper else Column("average error"))
    columns += [Column("paper", "average error")] if paper else []
    columns += [Column("FWI error"), Column("BWT error")]
    lines = dict(_lines(comparison))

    def row(label: str) -> list[Cell]:
        entry = lines[label]
        cells = [Cell(label), Cell(str(len(entry.runs)) if entry else NONE)]
        cells.append(_error_cell(comparison, entry, "average"))
        cells += [_paper_cell(comparison, entry.method if entry else label)] if paper else []
        return cells + [_error_cell(comparison, entry, key) for key in ("fwi", "bwt")]

    beside = f", beside {TABLE_1_SOURCE}" if paper else ""
    return Table(
        f"Errors in % after the last task, lower is better: mean ± standard deviation over seeds"
        f"{beside}. FWI: error on each task right after it was learned. BWT: its rise since then. "
        f"{_BEST}",
        columns,
        in_sections(lines, row),
    )


def difference_table(comparison: Comparison) -> Table | None:
    """Differences to the reference, paired by seed; None if nothing has two common seeds.

    :param comparison: what to show.
    """
    reference = comparison.reference
    if reference is None:
        return None
    others = {
        entry.label: entry
        for entry in comparison.entries
        if entry is not reference and entry.difference(reference, "average")[2] > 1
    }
    if not others:
        return None

    def row(label: str) -> list[Cell]:
        differences = [others[label].difference(reference, key) for key in ERRORS]
        cells = [statistic_cell(difference, sign="+") for difference in differences]
        return [Cell(label), Cell(str(differences[0][2])), *cells]

    return Table(
        f"Difference to {reference.label} in percentage points, paired by seed: mean ± standard "
        f"error over the seeds that both have. Above zero: a higher error than {reference.label}.",
        [
            Column("method", numeric=False),
            Column("common seeds"),
            *(Column(f"{_TITLES[key]} error") for key in ERRORS),
        ],
        in_sections(others, row),
    )


def sweep_table(sweep: Sweep, published: Mapping[float, float], source: str) -> Table:
    """A sweep in numbers, the paper's beside them.

    :param sweep: what to show.
    :param published: the paper's errors by value; may be empty.
    :param source: where they stand.
    """
    points = dict(sweep.points)
    rows = [
        [
            Cell(f"{value:g}"),
            *(
                [
                    Cell(str(len(entry.runs))),
                    *(statistic_cell(entry.statistic(key)) for key in ERRORS),
                ]
                if (entry := points.get(value))
                else [Cell(NONE)] * (1 + len(ERRORS))
            ),
            *([Cell(number(published.get(value, math.nan)))] if published else []),
        ]
        for value in sorted(points.keys() | published.keys())
    ]
    beside = f"; paper: average error in {source}" if published else ""
    return Table(
        f"{sweep.label}: errors in % by {sweep.setting}, lower is better{beside}.",
        [
            Column(sweep.setting),
            Column("seeds"),
            *(Column(f"{_TITLES[key]} error") for key in ERRORS),
            *([Column("paper")] if published else []),
        ],
        [Section("", rows)],
    )


def _lines(comparison: Comparison) -> list[tuple[str, Entry | None]]:
    """Label and entry of every line: what was run, and what only the paper has."""
    run = {entry.method for entry in comparison.entries}
    lines: list[tuple[str, Entry | None]] = [(e.label, e) for e in comparison.entries]
    absent = [name for name in TABLE_1.get(comparison.published, {}) if name not in run]
    return sorted(lines + [(name, None) for name in absent], key=_method_place)


def _method_place(line: tuple[str, Entry | None]) -> tuple[Any, ...]:
    label, entry = line
    method = entry.method if entry else label
    return method_order(method), label != method


def _error_cell(comparison: Comparison, entry: Entry | None, key: str) -> Cell:
    if entry is None:
        return Cell(NONE)
    return statistic_cell(entry.statistic(key), best=entry in comparison.best(key))


def _paper_cell(comparison: Comparison, method: str) -> Cell:
    return Cell(number(TABLE_1.get(comparison.published, {}).get(method, math.nan)))
