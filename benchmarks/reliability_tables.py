"""The tables of docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

_SHOWN = (2, 10, 25, 50, 75, 100)


def faults(results: Path) -> list[dict[str, str]]:
    """What ``python -m benchmarks faults`` has counted.

    :param results: folder with the results.
    """
    counted = pd.read_csv(results / "reliability" / "faults.csv")
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
        measured = pd.read_csv(results / "reliability" / f"long-stream-{method}.csv")
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
