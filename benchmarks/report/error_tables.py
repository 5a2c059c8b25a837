"""Tables of errors from the runs that are kept, for README.md and docs/."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from avalanche_dco.errors import DCOError
from benchmarks.methods import get_method
from benchmarks.report.paper_numbers import TABLE_1
from benchmarks.report.settings import default_settings, key_of
from benchmarks.report.statistics import number, statistic
from benchmarks.runs.kept import read_study, study_path
from benchmarks.runs.records import Run
from benchmarks.runs.training import Training

Rows = list[dict[str, str]]

# What tells runs of a method apart in a table; of other settings the study's JSON file tells.
_SHOWN = (
    "k", "new_task_k", "compression_updates", "gradients_per_update", "ewc_lambda", "si_lambda",
    "threshold", "lambda_reg", "alpha",
)  # fmt: skip
# The same, where they are not what the method or the training has by default.
_SHOWN_IF_CHANGED = (
    "couple_layers", "compression_loss", "dco_lambda", "gamma_1", "gradient_source", "theta",
    "penalty_step", "later_lr_factor", "precision", "experiences", "growth", "push_epochs",
)  # fmt: skip
# Runs that differ in a setting that is not shown are two rows too, never seeds of one.
_ONE_SETTING = ["benchmark", "method", "preset", "lr", "weight_decay", "settings", "everything"]


def errors(results: Path, names: list[str]) -> Rows:
    """All runs of some studies, seeds of one setting together.

    :param results: folder with the results.
    :param names: the studies.
    """
    return [
        {
            "benchmark": benchmark,
            "method": f"{method} ({settings})" if settings else method,
            "lr": f"{lr:g}",
            "weight decay": f"{decay:g}",
            "seeds": str(len(group)),
            **_error_columns(group),
            "kept MB": f"{group['memory_bytes'].mean() / 1e6:.1f}",
            "peak MB": f"{group['peak_megabytes'].max():.0f}",
        }
        for (benchmark, method, _, lr, decay, settings, _), group in _by_setting(results, names)
    ]


def beside_paper(results: Path, names: list[str]) -> Rows:
    """All methods on a benchmark, the best first, with the paper's figures.

    :param results: folder with the results.
    :param names: the benchmark, then the studies.
    """
    benchmark, *studies = names
    rows = [
        (
            group["average"].mean(),
            {
                "method": method,
                "settings": ", ".join(filter(None, [f"lr={lr:g}, wd={decay:g}", settings])),
                "preset": preset,
                "seeds": str(len(group)),
                **_error_columns(group),
                "paper %": number(TABLE_1.get(benchmark, {}).get(method, math.nan)),
                "minutes": f"{group['seconds'].mean() / 60:.1f}",
                "kept MB": f"{group['memory_bytes'].mean() / 1e6:.1f}",
            },
        )
        for (of, method, preset, lr, decay, settings, _), group in _by_setting(results, studies)
        if of == benchmark
    ]
    if not rows:
        raise DCOError(f"there are no runs of {benchmark} in the studies {studies} of {results}.")
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def settings(results: Path, names: list[str]) -> Rows:
    """The runs of some studies on one benchmark, by the values of some settings.

    :param results: folder with the results.
    :param names: the studies, with commas between them, the benchmark and the settings.
    """
    studies, benchmark, *wanted = names
    runs = []
    for run in _runs(results, studies.split(",")):
        if run.benchmark == benchmark:
            all_settings = get_method(run.method).arguments | run.settings
            runs.append({name: all_settings[name] for name in wanted} | run.outcome)
    return [
        dict(zip(wanted, map(str, values), strict=True))
        | {"seeds": str(len(group))}
        | _error_columns(group)
        for values, group in pd.DataFrame(runs).groupby(wanted)
    ]


def penalty_steps(results: Path, names: list[str]) -> Rows:
    """Average errors by learning rate: Naive's, and DCO's with either step of the penalty.

    :param results: folder with the results.
    :param names: the studies.
    """
    naive: dict[tuple[str, float], float] = {}
    of_dco: dict[tuple[str, int, float], dict[str, float]] = {}
    for run in _runs(results, names):
        lr, error = run.training["lr"], run.outcome["average"]
        if run.method == "naive":
            naive[run.benchmark, lr] = error
        else:
            steps = of_dco.setdefault((run.benchmark, run.settings["k"], lr), {})
            steps[run.settings["penalty_step"]] = error
    return [
        {
            "benchmark": benchmark,
            "k": str(k),
            "lr": f"{lr:g}",
            "Naive %": number(naive[benchmark, lr]),
            "gradient step %": number(steps.get("gradient", math.nan)),
            "implicit step %": number(steps.get("implicit", math.nan)),
        }
        for (benchmark, k, lr), steps in sorted(of_dco.items())
    ]


def _runs(results: Path, studies: list[str]) -> list[Run]:
    return [run for name in studies for run in read_study(study_path(name, results)).runs.values()]


def _by_setting(results: Path, studies: list[str]) -> list[tuple[Any, pd.DataFrame]]:
    rows = [
        {
            "benchmark": run.benchmark,
            "method": run.method,
            "preset": run.preset,
            "lr": run.training["lr"],
            "weight_decay": run.training["weight_decay"],
            "settings": ", ".join(_shown(run)),
            "everything": key_of(_usual(run) | run.settings | run.training),
            **run.outcome,
        }
        for run in _runs(results, studies)
    ]
    return list(pd.DataFrame(rows).groupby(_ONE_SETTING, sort=False))


def _usual(run: Run) -> dict[str, Any]:
    return Training.defaults() | default_settings(run.method)


def _shown(run: Run) -> Iterator[str]:
    usual = _usual(run)
    for name, value in (run.settings | run.training).items():
        is_usual = name in usual and value == usual[name]
        if name in _SHOWN or (name in _SHOWN_IF_CHANGED and not is_usual):
            yield f"{name}={value}"


def _error_columns(runs: pd.DataFrame) -> dict[str, str]:
    titles = {"average": "average error %", "fwi": "FWI %", "bwt": "BWT %"}
    return {title: str(statistic(runs[key])) for key, title in titles.items()}
