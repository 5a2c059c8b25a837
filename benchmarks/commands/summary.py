"""Tables of finished runs: one line per run, means over seeds, and what a search has chosen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.methods import get_method
from benchmarks.report.statistics import Statistic, statistic
from benchmarks.runs.choices import Choices
from benchmarks.runs.progress import Result
from benchmarks.runs.records import COSTS
from benchmarks.runs.search import EDGE, STATUSES

_ERRORS = (("average", "average"), ("FWI", "fwi"), ("BWT", "bwt"))


def wide_console() -> Console:
    """Standard output, wide enough for the tables where it is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def marked(method: str) -> str:
    """A method's name with its marks: replay, bound."""
    marks = sorted(get_method(method).marks)
    return f"{method} ({', '.join(marks)})" if marks else method


def table_of_runs(results: Sequence[Result]) -> Table:
    """One line per run, errors in per cent."""
    shown = Table(title="Error in %, lower is better", box=box.SIMPLE)
    shown.add_column("benchmark", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    shown.add_column("seed", justify="right")
    for title in ("average", "FWI", "BWT", "seconds", "gradients", "memory (MB)"):
        shown.add_column(title, justify="right")
    for result in results:
        if (row := result.summary) is not None:
            shown.add_row(
                result.job.benchmark,
                marked(result.job.method),
                str(result.job.seed),
                *(f"{row[key]:.2f}" for _, key in _ERRORS),
                f"{row['seconds']:.0f}",
                str(row["gradient_evaluations"]),
                f"{row['memory_bytes'] / 1e6:.1f}",
            )
    return shown


def means(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of every method, paired with DCO by seed.

    :param results: the runs, of one benchmark and one setting per method.
    """
    return [
        row | {key: _as_json(value) for key, value in row.items() if isinstance(value, Statistic)}
        for row in _statistics(results)
    ]


def table_of_means(results: Sequence[Result]) -> Table:
    """One line per method: mean ± standard deviation over seeds.

    :param results: the runs, of one benchmark and one setting per method.
    """
    shown = Table(title="Test error in %, mean ± standard deviation over seeds", box=box.SIMPLE)
    shown.add_column("method", no_wrap=True)
    for title in ("seeds", "average", "FWI", "BWT", "average - DCO's", "seconds", "gradients",
                  "memory (MB)", "peak (MB)"):  # fmt: skip
        shown.add_column(title, justify="right")
    for row in _statistics(results):
        shown.add_row(
            marked(row["method"]),
            str(len(row["seeds"])),
            *(str(row.get(key, "")) for key in ("average", "fwi", "bwt", "average_minus_dco")),
            f"{row['seconds']:.0f}",
            f"{row['gradient_evaluations']:.0f}",
            f"{row['memory_bytes'] / 1e6:.1f}",
            f"{row['peak_megabytes']:.0f}",
        )
    return shown


def _statistics(results: Sequence[Result]) -> list[dict[str, Any]]:
    runs = pd.DataFrame(
        [
            {"method": result.job.method, "seed": result.job.seed, **result.summary}
            for result in results
            if result.summary is not None
        ]
    )
    if runs.empty:
        return []
    by_seed = runs.drop_duplicates(["method", "seed"], keep="last").set_index("seed")
    reference = by_seed.loc[by_seed["method"] == "dco", "average"]
    rows = []
    for method, own in by_seed.groupby("method", sort=False):
        row: dict[str, Any] = {"method": method, "seeds": sorted(own.index.tolist())}
        row |= {key: statistic(own[key]) for _, key in _ERRORS}
        pairs = statistic(own["average"].sub(reference))
        if pairs.size and method != "dco":
            row["average_minus_dco"] = pairs
        rows.append(row | {key: float(own[key].mean()) for key in COSTS})
    return rows


def _as_json(of: Statistic) -> dict[str, float | None]:
    return {"mean": of.mean, "deviation": of.spread if of.size > 1 else None}


def table_of_choices(choices: Choices) -> Table:
    """Every combination with its validation error; the chosen ones are marked."""
    shown = Table(title="Average error in % on the validation split", box=box.SIMPLE)
    shown.add_column("method")
    shown.add_column("settings")
    shown.add_column("error", justify="right")
    shown.add_column("")
    for method, choice in choices.items():
        for candidate in choice["candidates"]:
            shown.add_row(
                method,
                ", ".join(f"{name}={value}" for name, value in candidate["settings"].items()),
                _error(candidate),
                "chosen" if candidate["settings"] == choice["settings"] else "",
            )
    return shown


def _error(candidate: Mapping[str, Any]) -> str:
    error = candidate["validation_error"]
    if error is None:
        return "failed"
    return f"{error:.2f}, ended early" if candidate.get("ended_early") else f"{error:.2f}"


def table_of_searches(choices: Choices) -> Table:
    """Where searches ended: the tries they took, and how sure each chosen value is."""
    shown = Table(title="How sure the chosen values are", box=box.SIMPLE)
    for column in ("method", "tries", "chosen", "status"):
        shown.add_column(column)
    for method, choice in choices.items():
        statuses = choice["statuses"]
        shown.add_row(
            method,
            f"{choice['tries']} of {choice['tries_allowed']}",
            "\n".join(f"{name}={choice['settings'][name]}" for name in statuses),
            "\n".join(statuses.values()),
        )
    found = {status for choice in choices.values() for status in choice["statuses"].values()}
    shown.caption = "\n".join(f"{one}: {STATUSES[one]}" for one in STATUSES if one in found)
    if EDGE in found:
        shown.caption += "\nThe same command with more --tries continues the search."
    shown.caption_justify = "left"
    return shown
