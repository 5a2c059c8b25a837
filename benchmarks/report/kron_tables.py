"""The tables of docs/kron.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.report.error_tables import Rows
from benchmarks.report.statistics import number, statistic
from benchmarks.runs.kept import read_study, study_path
from benchmarks.studies.task_sums.study import SHOWN
from benchmarks.studies.task_sums.sums import TITLES

_GROWTHS = {1.0: "", 0.5: " / √n", 0.0: " / n"}
_SETTING = ("sum", "strength", "growth", "floor", "seed")


def task_sums(results: Path, names: list[str]) -> Rows:
    """Average errors of the sums over tasks on validation data, by strength, for one network.

    :param results: folder with the results.
    :param names: the network.
    """
    (network,) = names
    frames = [
        run.metrics.assign(**{k: run.config[k] for k in _SETTING})
        for run in read_study(study_path("task-sums", results)).runs.values()
        if run.config["network"] == network
    ]
    frame = pd.concat(frames)
    frame = frame[frame["metric"] == "AverageError"]
    counted = [n for n in SHOWN if n in set(frame["trained"])]
    rows = []
    order = {name: place for place, name in enumerate(TITLES)}
    frame = frame.assign(place=frame["sum"].map(order))
    keys = ["place", "sum", "growth", "strength", "floor"]
    for (_, name, growth, strength, floor), runs in frame.groupby(keys):
        errors = {n: 100 * runs[runs["trained"] == n]["value"] for n in counted}
        rows.append(
            {
                "sum": TITLES[str(name)] + (f", floor {floor:g}" if floor else ""),
                "λ": f"{strength:g}" + _GROWTHS[float(str(growth))],
                **{f"{n} tasks": str(statistic(errors[n])) for n in counted},
            }
        )
    return rows


def resnet(results: Path, names: list[str]) -> Rows:
    """The ResNet-18 with both methods.

    :param results: folder with the results.
    :param names: nothing.
    """
    runs = read_study(study_path("resnet", results)).runs.values()
    return [
        {
            "method": run.method,
            "average error %": number(run.outcome["average"]),
            "BWT %": number(run.outcome["bwt"]),
            "ms per step, first and last task": " and ".join(
                f"{run.outcome['step_milliseconds'][place]:.0f}" for place in (0, -1)
            ),
            "memory (MB)": f"{run.outcome['memory_bytes'] / 1e6:.0f}",
            "peak memory (MB)": f"{run.outcome['peak_megabytes']:.0f}",
        }
        for run in runs
    ]
