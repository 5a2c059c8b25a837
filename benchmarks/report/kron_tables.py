"""The tables of docs/kron.md."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd

from avalanche_dco.errors import DCOError
from benchmarks.report.error_tables import Rows
from benchmarks.report.statistics import number, statistic
from benchmarks.runs.kept import read_measurements, read_study, study_path
from benchmarks.studies.task_sums import FIRST, SHOWN, TITLES, points, strength_of

_SHARES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.0)
"""Where the table of free directions divides them."""
_SETTING = ("sum", "strength", "growth", "floor", "seed")


def task_sums(results: Path, names: list[str]) -> Rows:
    """Average errors of the sums over tasks on validation data, by strength, for one network."""
    (network,) = names
    frames = [
        run.metrics.assign(label=strength_of(run)).assign(**{k: run.config[k] for k in _SETTING})
        for run in read_study(study_path("task-sums", results)).runs.values()
        if run.config["network"] == network
    ]
    frame = pd.concat(frames)
    frame = frame[frame["metric"] == "AverageError"]
    counted = [n for n in SHOWN if n in set(frame["trained"])]
    rows = []
    order = {name: place for place, name in enumerate(TITLES)}
    frame = frame.assign(place=frame["sum"].map(order))
    keys = ["place", "sum", "growth", "strength", "label", "floor"]
    for (_, name, _, _, label, floor), runs in frame.groupby(keys):
        errors = {n: 100 * runs[runs["trained"] == n]["value"] for n in counted}
        rows.append(
            {
                "sum": TITLES[str(name)] + (f", floor {floor:g}" if floor else ""),
                "strength": str(label),
                **{f"{n} tasks": str(statistic(errors[n])) for n in counted},
            }
        )
    return rows


def free_shares(results: Path, names: list[str]) -> Rows:
    """The error on the newest task by the share of the first layer's free directions."""
    (network,) = names
    rows = points(read_study(study_path("task-sums", results)), network)
    return [
        {
            "free directions of the first layer": f"{low:g} to {high:g}",
            "error on the newest task %": f"{inside.min():.1f} to {inside.max():.1f}",
            "median %": f"{inside.median():.1f}",
            "settings": str(rows[chosen]["label"].nunique()),
        }
        for high, low in itertools.pairwise(_SHARES)
        if not (
            inside := rows[chosen := (rows[FIRST] > low) & (rows[FIRST] <= high)]["newest"]
        ).empty
    ]


def grid(results: Path, names: list[str]) -> Rows:
    """Average errors of every benchmark by the values of one setting, and how good one of them is.

    Benchmarks with a single value are left out.

    :param names: studies, separated by commas; the setting with the value to compare with the
        best, as NAME=VALUE; other settings that the runs have to have.
    """
    studies, setting, *others = names
    (name, reference), *fixed = (
        (key, float(value)) for key, _, value in (one.partition("=") for one in (setting, *others))
    )
    runs = [
        run
        for study in studies.split(",")
        for run in read_study(study_path(study, results)).runs.values()
        if all(run.config["settings"][key] == value for key, value in fixed)
    ]
    frame = pd.DataFrame(
        {
            "benchmark": run.config["benchmark"],
            "value": run.config["settings"][name],
            "error": run.outcome["average"],
        }
        for run in runs
    )
    if frame.duplicated(["benchmark", "value"]).any():
        raise DCOError(
            f"runs of {studies} with the same {name} differ in something else. Name the values of "
            "other settings behind it, as NAME=VALUE."
        )
    errors = frame.pivot(index="benchmark", columns="value", values="error").dropna(thresh=2)
    return [
        {
            "benchmark": str(benchmark),
            **{f"{value:g}": number(row[value]) for value in errors.columns},
            f"{reference:g} behind the best": number(row[reference] - row.min()),
        }
        for benchmark, row in errors.iterrows()
    ]


def resnet(results: Path, names: list[str]) -> Rows:
    """The ResNet-18 with both methods."""
    runs = read_study(study_path("resnet", results)).runs.values()
    return [
        {
            "method": run.method,
            "average error %": number(run.outcome["average"]),
            "BWT %": number(run.outcome["bwt"]),
            "seconds of each task": " and ".join(
                f"{seconds:.0f}" for seconds in run.outcome["seconds_of_experiences"]
            ),
            "memory (MB)": f"{run.outcome['memory_bytes'] / 1e6:.0f}",
            "peak memory (MB)": f"{run.outcome['peak_megabytes']:.0f}",
        }
        for run in runs
    ]


def speed(results: Path, names: list[str]) -> Rows:
    """What DCO-KRON costs against plain SGD."""
    frame, _ = read_measurements(study_path("kron-speed", results))
    return [
        {
            "network": str(row["network"]),
            "SGD, ms per step": number(row["naive_ms"], 1),
            "DCO-KRON": number(row["kron_ms"], 1),
            "ratio": number(row["ratio"]),
            "estimate and eigenvectors": f"{row['once_seconds']:.1f} s, "
            f"{100 * row['share_of_a_task']:.1f} % of a task",
            "memory (MB)": number(row["memory_mb"], 1),
        }
        for _, row in frame.iterrows()
    ]


def drift(results: Path, names: list[str]) -> Rows:
    """The change of the outputs on the first task: predicted, half way, and as it is."""
    table, _ = read_measurements(study_path("kron-drift", results))
    return [
        {
            "strength": f"{row['strength']:g}",
            "seed": f"{row['seed']:g}",
            "predicted by the curvature": f"{row['predicted']:.2f}",
            "half way": f"{row['half_way']:.2f}",
            "after the task": f"{row['actual']:.1f}",
            "BWT %": number(row["bwt"]),
        }
        for row in table.to_dict("records")
    ]
