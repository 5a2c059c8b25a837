"""The report's tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.methods import BOUND, REPLAY
from benchmarks.report.comparing import Comparison, Entry, method_order
from benchmarks.report.document import Cell, Column, Section, Table
from benchmarks.report.paper_numbers import TABLE_1, TABLE_1_SOURCE
from benchmarks.report.reading import ERRORS
from benchmarks.report.settings import changed_settings
from benchmarks.report.sweeps import Sweep

NONE = "–"
_TITLES = {"average": "average", "fwi": "FWI", "bwt": "BWT"}
_SECTIONS = {
    "": "",
    REPLAY: "replay: keeps data of earlier tasks",
    BOUND: "bound: has the data of all tasks at hand",
}
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
        _sections(labels, row),
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
        _sections(lines, row),
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
        cells = [_cell(*difference, sign="+") for difference in differences]
        return [Cell(label), Cell(str(differences[0][2])), *cells]

    return Table(
        f"Difference to {reference.label} in percentage points, paired by seed: mean ± standard "
        f"error over the seeds that both have. Above zero: a higher error than {reference.label}.",
        [
            Column("method", numeric=False),
            Column("common seeds"),
            *(Column(f"{_TITLES[key]} error") for key in ERRORS),
        ],
        _sections(others, row),
    )


def cost_table(comparison: Comparison) -> Table:
    """What the runs cost.

    :param comparison: what to show.
    """
    entries = {entry.label: entry for entry in comparison.entries}
    figures: dict[str, Callable[[Entry], Cell]] = {
        "gradient evaluations": lambda e: _cell(*e.statistic("gradient_evaluations"), decimals=0),
        "training time, s": lambda e: _cell(*e.statistic("seconds"), decimals=0),
        "peak memory, MB": lambda e: Cell(_largest(e, "peak_megabytes")),
        "stored by the method, MB": lambda e: Cell(_number(e.statistic("memory_bytes")[0] / 1e6)),
    }
    return Table(
        "Cost of one run, lower is cheaper: mean ± standard deviation over seeds; the peak memory "
        "of the process is the largest of all seeds.",
        [Column("method", numeric=False), *(Column(title) for title in figures)],
        _sections(
            entries,
            lambda label: [Cell(label), *(show(entries[label]) for show in figures.values())],
        ),
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
                [Cell(str(len(entry.runs))), *(_cell(*entry.statistic(key)) for key in ERRORS)]
                if (entry := points.get(value))
                else [Cell(NONE)] * (1 + len(ERRORS))
            ),
            *([Cell(_number(published.get(value, math.nan)))] if published else []),
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


def settings_table(comparison: Comparison) -> Table:
    """Seeds and settings of every entry.

    :param comparison: what to show.
    """
    entries = {entry.label: entry for entry in comparison.entries}

    def row(label: str) -> list[Cell]:
        entry = entries[label]
        seeds = ", ".join(str(run.seed) for run in entry.runs)
        changed = ", ".join(changed_settings(entry.method, entry.settings))
        training = ", ".join(f"{name}={value}" for name, value in entry.training.items())
        presets = ", ".join(dict.fromkeys(run.preset for run in entry.runs if run.preset))
        texts = (seeds, presets, training, changed)
        return [Cell(label), *(Cell(text or NONE) for text in texts)]

    return Table(
        "Seeds, preset, training, and the settings of the method that are not its defaults.",
        [Column(t, numeric=False) for t in ("method", "seeds", "preset", "training", "settings")],
        _sections(entries, row),
    )


def origin_table(comparison: Comparison) -> Table:
    """With what, and on which data, the runs were made.

    :param comparison: what to show.
    """
    found: dict[str, dict[str, None]] = {}
    for config in (run.config for run in comparison.runs):
        versions = config.get("versions")
        parts = {
            "commit": config.get("git_commit"),
            "python": config.get("python"),
            **(versions if isinstance(versions, dict) else {"versions": versions}),
            "threads": config.get("threads"),
        }
        for name, value in parts.items():
            if value is not None:
                found.setdefault(name, {})[_text(value)] = None
    data = comparison.data if isinstance(comparison.data, dict) else {"": comparison.data}
    rows = [(name, ", ".join(values)) for name, values in found.items()]
    rows += [(f"data {name}".strip(), _text(value)) for name, value in data.items() if value]
    rows += [("own arrays", comparison.npz)] if comparison.npz else []
    return Table(
        "What the runs were made with; several values where runs differ.",
        [Column("what", numeric=False), Column("value", numeric=False)],
        [Section("", [[Cell(name), Cell(value)] for name, value in rows])],
    )


def _lines(comparison: Comparison) -> list[tuple[str, Entry | None]]:
    """Label and entry of every line: what was run, and what only the paper has."""
    run = {entry.method for entry in comparison.entries}
    lines: list[tuple[str, Entry | None]] = [(e.label, e) for e in comparison.entries]
    absent = [name for name in TABLE_1.get(comparison.published, {}) if name not in run]
    return sorted(lines + [(name, None) for name in absent], key=_method_place)


def _method_place(line: tuple[str, Entry | None]) -> tuple[int, int, str]:
    label, entry = line
    return method_order(entry.method if entry else label)


def _sections(lines: Mapping[str, Entry | None], row: Callable[[str], list[Cell]]) -> list[Section]:
    """Rows under the title of their mark, those without one first."""
    sections = []
    for mark, title in _SECTIONS.items():
        labels = [label for label, entry in lines.items() if (entry.mark if entry else "") == mark]
        if labels:
            sections.append(Section(title, [row(label) for label in labels]))
    return sections


def _error_cell(comparison: Comparison, entry: Entry | None, key: str) -> Cell:
    if entry is None:
        return Cell(NONE)
    return _cell(*entry.statistic(key), best=comparison.best(key) is entry)


def _paper_cell(comparison: Comparison, method: str) -> Cell:
    return Cell(_number(TABLE_1.get(comparison.published, {}).get(method, math.nan)))


def _cell(
    mean: float, spread: float, count: int, *, decimals: int = 2, sign: str = "", best: bool = False
) -> Cell:
    known = count > 1 and math.isfinite(spread)
    return Cell(
        _number(mean, decimals, sign), f"± {_number(spread, decimals)}" if known else "", best
    )


def _number(value: float, decimals: int = 2, sign: str = "") -> str:
    """With a true minus sign, and none before a zero."""
    if not math.isfinite(value):
        return NONE
    rounded = round(value, decimals) + 0.0
    return f"{rounded:{sign},.{decimals}f}".replace("-", "−")


def _largest(entry: Entry, key: str) -> str:
    return _number(max(entry.by_seed(key).values(), default=math.nan), 0)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
