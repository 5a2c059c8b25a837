"""The report's tables: errors, differences, sweeps, costs, origins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.methods import BOUND, REPLAY
from benchmarks.report.comparing import Comparison, Entry, Sweep, method_order
from benchmarks.report.document import Best, Rows, Table
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
    best = {key: comparison.best(key) for key in ERRORS}

    def place(line: tuple[str, Entry | None]) -> tuple[Any, ...]:
        label, entry = line
        method = entry.method if entry else label
        return method_order(method), label != method

    def row(label: str, entry: Entry | None) -> dict[str, str]:
        errors = {
            title: _written(entry.statistic(key), best=entry in best[key]) if entry else NONE
            for key, title in _TITLES.items()
        }
        average, *others = errors.items()
        printed = number(paper.get(entry.method if entry else label, math.nan))
        beside = {"paper": printed} if paper else {}
        seeds = str(len(entry.runs)) if entry else NONE
        return {"method": label, "seeds": seeds, **dict([average]), **beside, **dict(others)}

    beside = f", beside {TABLE_1_SOURCE}" if paper else ""
    return Table(
        f"Errors in % after the last task, lower is better: mean ± standard deviation over seeds"
        f"{beside}. FWI: error on each task right after it was learned. BWT: its rise since then. "
        "Bold: lowest mean among the methods that keep no data (neither replay nor bound).",
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

    def row(label: str, entry: Entry) -> dict[str, str]:
        differences = {title: entry.difference(reference, key) for key, title in _TITLES.items()}
        common = str(differences["average error"].size)
        written = {title: _written(one, sign="+") for title, one in differences.items()}
        return {"method": label, "common seeds": common, **written}

    table = Table(
        f"Difference to {reference.label} in percentage points, paired by seed: mean ± standard "
        f"error over the seeds that both have. Above zero: a higher error than {reference.label}.",
        _in_sections(others, row),
    )
    return table if others else None


def sweep_table(sweep: Sweep, published: Mapping[float, float], source: str) -> Table:
    """A sweep in numbers, the paper's beside them."""
    points = dict(sweep.points)
    rows = []
    for value in sorted(points.keys() | published.keys()):
        entry = points.get(value)
        errors = {
            title: _written(entry.statistic(key)) if entry else NONE
            for key, title in _TITLES.items()
        }
        printed = {"paper": number(published.get(value, math.nan))} if published else {}
        seeds = str(len(entry.runs)) if entry else NONE
        rows.append({sweep.setting: f"{value:g}", "seeds": seeds, **errors, **printed})
    beside = f"; paper: average error in {source}" if published else ""
    caption = f"{sweep.label}: errors in % by {sweep.setting}, lower is better{beside}."
    return Table(caption, {"": rows})


def cost_table(comparison: Comparison) -> Table:
    """What the runs cost."""

    def row(label: str, entry: Entry) -> dict[str, str]:
        peak = max(entry.by_seed("peak_megabytes").values(), default=math.nan)
        return {
            "method": label,
            "gradient evaluations": _written(entry.statistic("gradient_evaluations"), 0),
            "training time (s)": _written(entry.statistic("seconds"), 0),
            "memory (MB)": number(entry.statistic("memory_bytes").mean / 1e6),
            "peak (MB)": number(peak, 0),
        }

    return Table(
        "Cost of one run, lower is cheaper: mean ± standard deviation over seeds. Memory is what "
        "the method keeps between experiences, the peak that of the process, the largest of all "
        "seeds.",
        _in_sections({entry.label: entry for entry in comparison.entries}, row),
    )


def origin_table(comparison: Comparison) -> Table:
    """With what, and on which data, the runs were made."""
    found: dict[str, dict[str, None]] = {}
    for config in (run.config for run in comparison.runs):
        parts = {"commit": config["git_commit"], "python": config["python"], **config["versions"]}
        for name, value in (parts | {"threads": config["threads"]}).items():
            found.setdefault(name, {})[str(value)] = None
    rows = {name: ", ".join(values) for name, values in found.items()}
    rows |= {f"data {name}": value for name, value in comparison.data.items()}
    rows |= {"own arrays": comparison.npz} if comparison.npz else {}
    caption = "What the runs were made with; several values where runs differ."
    return text_table(caption, ("what", "value"), rows.items())


def text_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without numbers."""
    shown = [dict(zip(columns, row, strict=True)) for row in rows]
    return Table(caption, {"": shown}, numeric=False)


def _in_sections(
    lines: Mapping[str, Any], row: Callable[[str, Any], dict[str, str]]
) -> dict[str, Rows]:
    """Rows under the title of their mark; no entry for what was not run."""
    sections: dict[str, Rows] = {title: [] for title in _SECTIONS.values()}
    for name, one in lines.items():
        sections[_SECTIONS[one.mark if one else ""]].append(row(name, one))
    return {title: rows for title, rows in sections.items() if rows}


def _written(of: Statistic, decimals: int = DECIMALS, sign: str = "", best: bool = False) -> str:
    """A mean with its spread, if there is one."""
    spread = f" ± {number(of.spread, decimals)}" if math.isfinite(of.spread) else ""
    text = number(of.mean, decimals, sign).replace("-", "−") + spread
    return Best(text) if best else text
