"""Tables of measurements that are not of runs: speed, faults, long streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.report.error_tables import Rows, Shown
from benchmarks.report.statistics import number
from benchmarks.runs.kept import read_measurements, read_study, study_path
from benchmarks.studies.capacity import cost_by_share
from benchmarks.upstream.omissions import OMISSIONS

_EXPERIENCES = (2, 10, 25, 50, 75, 100)


def faults(results: Path, names: list[str]) -> Shown:
    """What ``python -m benchmarks faults`` has counted."""
    counted, _ = read_measurements(study_path("faults", results))
    counts = ["tried", "lost", "wrong"]
    rows = [
        {"fault": str(row["fault"])} | {name: str(row[name]) for name in counts}
        for _, row in counted.iterrows()
    ]
    totals = counted[counts].sum()
    rows.append({"fault": "**together**"} | {name: f"**{totals[name]}**" for name in counts})
    return Shown(rows)


def capacity(results: Path, names: list[str]) -> Shown:
    """How much worse than by Naive a task is learned, by the share that it finds prohibited."""
    runs = read_study(study_path("capacity", results)).runs.values()
    frames = [
        run.metrics.assign(method=run.method, seed=f"{run.config['data']} {run.seed}")
        for run in runs
        if run.config["data"].startswith("permuted-digits")
    ]
    rows = []
    for row in cost_by_share(pd.concat(frames)).reset_index(names="band").to_dict("records"):
        mean, least, most = (
            number(row[name], 1).replace("-", "−") for name in ("mean", "min", "max")
        )
        rows.append(
            {
                "`CapacityStart`": f"{row['band'].left:g} to {min(row['band'].right, 1):g}",
                "experiences": str(row["count"]),
                "DCO's error on the new task less Naive's": mean,
                "least": least,
                "most": most,
            }
        )
    return Shown(rows, "Errors in percentage points, right after the training of the new task.")


def upstream_lines(results: Path, names: list[str]) -> Shown:
    """How many lines ``python -m benchmarks upstream`` adds to each file of Avalanche."""
    counted, _ = read_measurements(study_path("upstream", results))
    rows = [
        {"file": f"`{row['file']}`", "lines": f"{row['lines']:,}"} for _, row in counted.iterrows()
    ]
    return Shown([*rows, {"file": "**together**", "lines": f"**{counted['lines'].sum():,}**"}])


def upstream_left_out(results: Path, names: list[str]) -> Shown:
    """What the contribution to Avalanche does without."""
    return Shown([{"left out": one.what, "why": one.why} for one in OMISSIONS])


def long_stream(results: Path, names: list[str]) -> Shown:
    """What ``python -m benchmarks long-stream`` has measured for both methods."""
    frame, _ = read_measurements(study_path("long-stream", results))
    rows, wrong = [], []
    for method, title in (("dco-comp", "DCO-COMP"), ("dco", "DCO")):
        measured = frame[frame["method"] == method].reset_index(drop=True)
        # Means of ten experiences: single ones vary with whatever else the machine does. The
        # first has no penalty yet.
        with_penalty = measured["step_ms"].where(measured["experiences"] > 1)
        step = with_penalty.rolling(10, min_periods=1).mean()
        for _, row in measured[measured["experiences"].isin(_EXPERIENCES)].iterrows():
            count = int(row["experiences"])
            if (
                row["steps_counted"] != row["steps_made"]
                or not row["experiences_counted"] == row["experiences_in_plugin"] == count
            ):
                wrong.append(f"{title} after {count}")
            rows.append(
                {
                    "method": title,
                    "experiences": str(count),
                    "memory (kB)": number(row["plugin_bytes"] / 1e3, 0),
                    "process (MB)": number(row["process_bytes"] / 1e6, 0),
                    "training step (ms)": number(step[count - 1]),
                    "whole experience (s)": number(row["experience_seconds"], 1),
                }
            )
    return Shown(rows, f"Counters: {'WRONG for ' + ', '.join(wrong) if wrong else 'all right'}.")


def cost_of_dco(results: Path, names: list[str]) -> Shown:
    """What ``python -m benchmarks cost-of-dco`` has measured on one benchmark."""
    frame, _ = read_measurements(study_path("cost-of-dco", results))
    (benchmark,) = names
    frame = frame[frame["benchmark"] == benchmark]
    own = against_naive(frame).reset_index()
    rows = [
        {
            "what is changed": row["what"],
            "average error %": number(row["average"]),
            "less the default's": number(row["less_default"], sign="+"),
            "BWT %": number(row["bwt"]),
            "time over Naive's": number(row["ratio"], 1),
            "seeds": str(row["seeds"]),
        }
        for row in own.to_dict("records")
    ]
    note = "Validation data; means over seeds, differences to the default paired by seed."
    return Shown(rows, note)


def against_naive(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors, and times over Naive's, of the study on average over seeds, by variant."""

    def of(variant: str, column: str) -> pd.Series:
        own = frame[frame["variant"] == variant].set_index(["benchmark", "seed"])[column]
        paired = own.reindex(pd.MultiIndex.from_frame(frame[["benchmark", "seed"]]))
        return pd.Series(paired.to_numpy(), frame.index)

    frame = frame.assign(
        ratio=frame["seconds"] / of("naive", "seconds"),
        less_default=frame["average"] - of("default", "average"),
    )
    columns = ["average", "less_default", "fwi", "bwt", "ratio"]
    groups = frame.groupby(["benchmark", "variant", "what"], sort=False)
    return groups[columns].mean().assign(seeds=groups["seed"].nunique())


def speed(results: Path, names: list[str]) -> Shown:
    """What ``python -m benchmarks speed`` has measured."""
    frame, config = read_measurements(study_path("speed", results))
    (part,) = names
    note = f"{config['threads']} thread(s)."
    if part == "training":
        note += f" {config['trained_with']}"
    return Shown(_SPEED[part](frame), note)


def _against(parts: Sequence[str], frame: pd.DataFrame) -> Rows:
    """Times, each against another one."""
    own = frame[frame["part"].isin(parts) & frame["ratio"].notna()]
    return [
        {
            "what": row["case"],
            "ms": number(1e3 * row["seconds"], 1),
            "against": row["against"],
            "ratio": number(row["ratio"]),
        }
        for _, row in own.iterrows()
    ]


def _tasks(frame: pd.DataFrame) -> Rows:
    own = frame[frame["part"] == "tasks"]
    rows = []
    for method, steps in own.groupby("case", sort=False):
        first, last = steps.iloc[0], steps.iloc[-1]
        few, many = int(first["at"]), int(last["at"])
        rows.append(
            {
                "method": str(method),
                f"ms after {few} tasks": number(1e3 * first["seconds"]),
                f"after {many}": number(1e3 * last["seconds"]),
                "ratio": number(last["seconds"] / first["seconds"]),
                f"memory (MB) after {few}": number(first["memory_mb"]),
                f"memory (MB) after {many}": number(last["memory_mb"]),
            }
        )
    return rows


def _growth(frame: pd.DataFrame) -> Rows:
    return [
        {
            "what": row["case"],
            "in": row["against"],
            "from": number(row["from"], 0),
            "to": number(row["at"], 0),
            "exponent": number(row["slope"]),
        }
        for _, row in frame[frame["part"] == "growth"].iterrows()
    ]


def _training(frame: pd.DataFrame) -> Rows:
    rows = []
    for _, row in frame[frame["part"] == "training"].iterrows():
        benchmark, method = row["case"].split(": ")
        rows.append(
            {
                "benchmark": benchmark,
                "method": method,
                "seconds": number(row["seconds"], 1),
                "times Naive's": number(row["ratio"]),
                "memory (MB)": number(row["memory_mb"]),
                "peak over Naive's (MB)": number(row["peak_mb"], 0),
            }
        )
    return rows


_SPEED: dict[str, Callable[[pd.DataFrame], Rows]] = {
    "steps": partial(_against, ("autoencoder", "penalty")),
    "others": partial(_against, ("others",)),
    "tasks": _tasks,
    "growth": _growth,
    "training": _training,
}
