"""The tables of docs/reliability.md."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd

from avalanche_dco.errors import DCOError

_SHOWN = (2, 10, 25, 50, 75, 100)


def faults(results: Path) -> list[dict[str, str]]:
    """What ``python -m benchmarks faults`` has counted.

    :param results: folder with the results.
    """
    counted = _read(results / "reliability" / "faults.csv")
    counts = ["tried", "lost", "wrong"]
    rows = [
        {"fault": str(row["fault"])} | {name: str(row[name]) for name in counts}
        for _, row in counted.iterrows()
    ]
    totals = counted[counts].sum()
    return [*rows, {"fault": "**together**"} | {name: f"**{totals[name]}**" for name in counts}]


def long_stream(results: Path) -> list[dict[str, str]]:
    """What ``python -m benchmarks long-stream`` has measured for both methods.

    :param results: folder with the results.
    """
    rows = []
    for method, title in (("dco-comp", "DCO-COMP"), ("dco", "DCO")):
        measured = _read(results / "reliability" / f"long-stream-{method}.csv")
        # Means of ten experiences: single ones vary with whatever else the machine does. The
        # first has no penalty yet.
        with_penalty = measured["step_ms"].where(measured["experiences"] > 1)
        step = with_penalty.rolling(10, min_periods=1).mean()
        for _, row in measured[measured["experiences"].isin(_SHOWN)].iterrows():
            number = int(row["experiences"])
            right = (
                row["steps_counted"] == row["steps_made"]
                and row["experiences_counted"] == row["experiences_in_plugin"] == number
            )
            rows.append(
                {
                    "method": title,
                    "experiences": str(number),
                    "kept by the plugin, kB": f"{row['plugin_bytes'] / 1e3:.0f}",
                    "process, MB": f"{row['process_bytes'] / 1e6:.0f}",
                    "training step, ms": f"{step[number - 1]:.2f}",
                    "whole experience, s": f"{row['experience_seconds']:.1f}",
                    "counters": "right" if right else "WRONG",
                }
            )
    return rows


def _read(path: Path) -> pd.DataFrame:
    """A file of measurements; raises if a line of it was cut, which pandas would fill with NaN."""
    text = path.read_text(encoding="utf-8")
    lines = list(csv.reader(io.StringIO(text)))
    bad = [n for n, line in enumerate(lines, 1) if len(line) != len(lines[0]) or "" in line]
    if bad or len(lines) < 2 or not text.endswith("\n"):
        where = (
            f"line {bad[0]} has not as many values as the first" if bad else "its end is missing"
        )
        raise DCOError(f"{path} is damaged: {where}. Restore it, or measure again.")
    return pd.read_csv(io.StringIO(text))
