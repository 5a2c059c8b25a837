"""The report's tables: errors, differences, sweeps, costs, origins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.methods import BOUND, REPLAY
from benchmarks.report.comparing import Comparison, Entry, Sweep, method_order
from benchmarks.report.document import Cell, Section, Table
from benchmarks.report.paper_numbers import TABLE_1, TABLE_1_SOURCE
from benchmarks.report.statistics import DECIMALS, NONE, Statistic, number
from benchmarks.runs.records import ERRORS

_TITLES = {"average": "average error", "fwi": "FWI error", "bwt": "BWT error"}
_SECTIONS = {
    "": "",
    REPLAY: "replay: keeps data of earlier tasks",
    BOUND: "bound: has the data of all tasks at hand",
}


def error_table(comparison: Comparison) -> Table:
    """Average, FWI and BWT error of one comparison, beside the paper's."""
    paper = TABLE_1.get(comparison.published, {})
    run = {entry.method for entry in comparison.entries}
    lines: dict[str, Entry | None] = {entry.label: entry for entry in comparison.entries}
    lines |= {name: None for name in paper if name not in run}

    def place(line: tuple[str, Entry | None]) -> tuple[Any, ...]:
        label, entry = line
        method = entry.method if entry else label
        return method_order(method), label != method

    def row(label: str, entry: Entry | None) -> list[Cell]:
        cells = [Cell(label), Cell(str(len(entry.runs)) if entry else NONE)]
        errors = {
            key: _cell(entry.statistic(key), best=entry in comparison.best(key))
            if entry
            else Cell(NONE)
            for key in ERRORS
        }
        printed = number(paper.get(entry.method if entry else label, math.nan))
        beside = [Cell(printed)] if paper else []
        return [*cells, errors.pop("average"), *beside, *errors.values()]

    beside = f", beside {TABLE_1_SOURCE}" if paper else ""
    average, *others = _TITLES.values()
    return Table(
        f"Errors in % after the last task, lower is better: mean ± standard deviation over seeds"
        f"{beside}. FWI: error on each task right after it was learned. BWT: its rise since then. "
        "Bold: lowest mean among the methods that keep no data (neither replay nor bound).",
        ["method", "seeds", average, *(["paper"] if paper else []), *others],
        _in_sections(dict(sorted(lines.items(), key=place)), row),
    )


def difference_table(comparison: Comparison) -> Table | None:
    """Differences to the reference, paired by seed; None if nothing has two common seeds."""
    reference = comparison.reference
    if reference is None:
        return None
    others = {
        entry.label: entry
        for entry in comparison.entries
        if entry is not reference and entry.difference(reference, "average").size > 1
    }
    if not others:
        return None

    def row(label: str, entry: Entry) -> list[Cell]:
        differences = [entry.difference(reference, key) for key in ERRORS]
        cells = [_cell(difference, sign="+") for difference in differences]
        return [Cell(label), Cell(str(differences[0].size)), *cells]

    return Table(
        f"Difference to {reference.label} in percentage points, paired by seed: mean ± standard "
        f"error over the seeds that both have. Above zero: a higher error than {reference.label}.",
        ["method", "common seeds", *_TITLES.values()],
        _in_sections(others, row),
    )


def sweep_table(sweep: Sweep, published: Mapping[float, float], source: str) -> Table:
    """A sweep in numbers, the paper's beside them."""
    points = dict(sweep.points)
    rows = []
    for value in sorted(points.keys() | published.keys()):
        entry = points.get(value)
        cells = [Cell(str(len(entry.runs))), *(_cell(entry.statistic(key)) for key in ERRORS)] if (
            entry
        ) else [Cell(NONE)] * (1 + len(ERRORS))  # fmt: skip
        printed = [Cell(number(published.get(value, math.nan)))] if published else []
        rows.append([Cell(f"{value:g}"), *cells, *printed])
    beside = f"; paper: average error in {source}" if published else ""
    return Table(
        f"{sweep.label}: errors in % by {sweep.setting}, lower is better{beside}.",
        [sweep.setting, "seeds", *_TITLES.values(), *(["paper"] if published else [])],
        [Section("", rows)],
    )


def cost_table(comparison: Comparison) -> Table:
    """What the runs cost."""

    def row(label: str, entry: Entry) -> list[Cell]:
        peak = max(entry.by_seed("peak_megabytes").values(), default=math.nan)
        return [
            Cell(label),
            _cell(entry.statistic("gradient_evaluations"), 0),
            _cell(entry.statistic("seconds"), 0),
            Cell(number(entry.statistic("memory_bytes").mean / 1e6)),
            Cell(number(peak, 0)),
        ]

    return Table(
        "Cost of one run, lower is cheaper: mean ± standard deviation over seeds. Memory is what "
        "the method keeps between experiences, the peak that of the process, the largest of all "
        "seeds.",
        ["method", "gradient evaluations", "training time (s)", "memory (MB)", "peak (MB)"],
        _in_sections({entry.label: entry for entry in comparison.entries}, row),
    )


def origin_table(comparison: Comparison) -> Table:
    """With what, and on which data, the runs were made."""
    found: dict[str, dict[str, None]] = {}
    for config in (run.config for run in comparison.runs):
        parts = {"commit": config["git_commit"], "python": config["python"], **config["versions"]}
        for name, value in (parts | {"threads": config["threads"]}).items():
            found.setdefault(name, {})[str(value)] = None
    rows = [(name, ", ".join(values)) for name, values in found.items()]
    rows += [(f"data {name}", value) for name, value in comparison.data.items()]
    rows += [("own arrays", comparison.npz)] if comparison.npz else []
    caption = "What the runs were made with; several values where runs differ."
    return text_table(caption, ["what", "value"], rows)


def text_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without numbers."""
    cells = [[Cell(text) for text in row] for row in rows]
    return Table(caption, columns, [Section("", cells)], numeric=False)


def _in_sections(
    lines: Mapping[str, Any], row: Callable[[str, Any], Sequence[Cell]]
) -> list[Section]:
    """Rows under the title of their mark; no entry for what was not run."""
    sections = []
    for mark, title in _SECTIONS.items():
        rows = [row(name, one) for name, one in lines.items() if (one.mark if one else "") == mark]
        sections += [Section(title, rows)] if rows else []
    return sections


def _cell(of: Statistic, decimals: int = DECIMALS, sign: str = "", best: bool = False) -> Cell:
    """A mean with its spread, if there is one."""
    spread = f" ± {number(of.spread, decimals)}" if math.isfinite(of.spread) else ""
    return Cell(number(of.mean, decimals, sign).replace("-", "−") + spread, best)
