"""Tables of finished runs: one line per run, or means over seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.methods import get_method
from benchmarks.runs.progress import Result

_ERRORS = (("average", "average"), ("FWI", "fwi"), ("BWT", "bwt"))


def wide_console() -> Console:
    """Standard output, wide enough for the tables where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def marked(method: str) -> str:
    """A method's name with its marks: replay, bound."""
    marks = sorted(get_method(method).marks)
    return f"{method} ({', '.join(marks)})" if marks else method


def table_of_runs(results: Sequence[Result]) -> Table:
    """One line per run, errors in per cent.

    :param results: the runs; those that failed are left out.
    """
    shown = Table(title="Error in %, lower is better", box=box.SIMPLE)
    shown.add_column("benchmark", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    shown.add_column("seed", justify="right")
    for title in ("average", "FWI", "BWT", "seconds", "gradients", "kept MB"):
        shown.add_column(title, justify="right")
    for result in results:
        if (row := result.summary) is not None:
            shown.add_row(
                result.job.benchmark,
                marked(result.job.method),
                str(result.job.seed),
                *(f"{row[key]:.2f}" for _, key in _ERRORS),
                f"{row['seconds']:.0f}",
                str(row.get("gradient_evaluations", "")),
                f"{row['memory_bytes'] / 1e6:.1f}",
            )
    return shown


def means(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of every method, paired with DCO by seed.

    :param results: the runs, of one benchmark and one setting per method.
    """
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for result in results:
        if result.summary is not None:
            by_method.setdefault(result.job.method, {})[result.job.seed] = result.summary
    reference = by_method.get("dco", {})
    rows: list[dict[str, Any]] = []
    for method, runs in by_method.items():
        row: dict[str, Any] = {"method": method, "seeds": sorted(runs)}
        for _, key in _ERRORS:
            row[key] = _mean_and_deviation([run[key] for run in runs.values()])
        pairs = [
            runs[seed]["average"] - reference[seed]["average"] for seed in runs if seed in reference
        ]
        if pairs and method != "dco":
            row["average_minus_dco"] = _mean_and_deviation(pairs)
        for key in ("seconds", "gradient_evaluations", "memory_bytes", "peak_megabytes"):
            known = [run[key] for run in runs.values() if key in run]  # older runs lack some
            row[key] = fmean(known) if known else None
        rows.append(row)
    return rows


def table_of_means(results: Sequence[Result]) -> Table:
    """One line per method: mean ± standard deviation over seeds.

    :param results: the runs, of one benchmark and one setting per method.
    """
    shown = Table(title="Test error in %, mean ± standard deviation over seeds", box=box.SIMPLE)
    shown.add_column("method", no_wrap=True)
    for title in ("seeds", "average", "FWI", "BWT", "average - DCO's", "seconds", "gradients",
                  "kept MB", "peak MB"):  # fmt: skip
        shown.add_column(title, justify="right")
    for row in means(results):
        shown.add_row(
            marked(row["method"]),
            str(len(row["seeds"])),
            *(_shown(row.get(key)) for key in ("average", "fwi", "bwt", "average_minus_dco")),
            f"{row['seconds']:.0f}",
            "" if (count := row["gradient_evaluations"]) is None else f"{count:.0f}",
            f"{row['memory_bytes'] / 1e6:.1f}",
            f"{row['peak_megabytes']:.0f}",
        )
    return shown


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    deviation = stdev(values) if len(values) > 1 else None
    return {"mean": fmean(values), "deviation": deviation}


def _shown(value: dict[str, float | None] | None) -> str:
    if value is None:
        return ""
    mean = f"{value['mean']:.2f}"
    return mean if value["deviation"] is None else f"{mean} ± {value['deviation']:.2f}"
