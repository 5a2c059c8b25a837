"""Tables of errors from the runs that are kept, for README.md and docs/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from avalanche_dco.errors import DCOError
from benchmarks.methods import get_method
from benchmarks.report.paper_numbers import TABLE_1
from benchmarks.report.settings import default_settings, key_of
from benchmarks.runs.records import checked_outcome
from benchmarks.runs.training import Training

Rows = list[dict[str, str]]

_OUTCOMES = "*/outcome.json"

# What tells runs of a method apart in a table; of other settings the run's config.json tells.
_SHOWN = (
    "k", "new_task_k", "compression_updates", "gradients_per_update", "ewc_lambda", "si_lambda",
    "threshold", "lambda_reg", "alpha",
)  # fmt: skip
# The same, where they are not what the method or the training has by default.
_SHOWN_IF_CHANGED = (
    "couple_layers", "compression_loss", "dco_lambda", "gamma_1", "gradient_source", "theta",
    "penalty_step", "later_lr_factor", "precision", "experiences",
)  # fmt: skip
# What runs that are older than a setting had in its place, where that is not today's default.
_BEFORE_IT_CAME = {"dco-comp": {"compression_loss": "directions"}}
# Runs that differ in a setting that is not shown are two rows too, never seeds of one.
_ONE_SETTING = ["benchmark", "method", "preset", "lr", "weight_decay", "settings", "everything"]


def errors(results: Path, names: list[str]) -> Rows:
    """All runs below some folders, seeds of one setting together.

    :param results: folder with the results.
    :param names: folders in it.
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
    :param names: the benchmark, then folders in it.
    """
    benchmark, *folders = names
    rows = [
        (
            group["average"].mean(),
            {
                "method": method,
                "settings": ", ".join(filter(None, [f"lr={lr:g}, wd={decay:g}", settings])),
                "preset": preset,
                "seeds": str(len(group)),
                **_error_columns(group),
                "paper %": _number(TABLE_1.get(benchmark, {}).get(method)),
                "minutes": f"{group['seconds'].mean() / 60:.1f}",
                "kept MB": f"{group['memory_bytes'].mean() / 1e6:.1f}",
            },
        )
        for (of, method, preset, lr, decay, settings, _), group in _by_setting(results, folders)
        if of == benchmark
    ]
    if not rows:
        raise DCOError(f"there are no runs of {benchmark} below {folders} of {results}.")
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def settings(results: Path, names: list[str]) -> Rows:
    """The runs below some folders on one benchmark, by the values of some settings.

    :param results: folder with the results.
    :param names: the folders, with commas between them, the benchmark and the settings.
    """
    folders, benchmark, *wanted = names
    paths = [path for name in folders.split(",") for path in (results / name).glob(_OUTCOMES)]
    runs = []
    for path in paths:
        outcome, config = checked_outcome(path.parent), _config(path.parent)
        if config["benchmark"] == benchmark:
            all_settings = get_method(config["method"]).arguments | _settings_of(config)
            runs.append({name: all_settings[name] for name in wanted} | outcome)
    return [
        dict(zip(wanted, map(str, values), strict=True))
        | {"seeds": str(len(group))}
        | _error_columns(group)
        for values, group in pd.DataFrame(runs).groupby(wanted)
    ]


def _by_setting(results: Path, folders: list[str]) -> list[tuple[Any, pd.DataFrame]]:
    runs = [
        _run_of(path.parent)
        for name in folders
        for path in sorted((results / name).glob(_OUTCOMES))
    ]
    return list(pd.DataFrame(runs).groupby(_ONE_SETTING, sort=False))


def _run_of(folder: Path) -> dict[str, Any]:
    outcome, config = checked_outcome(folder), _config(folder)
    return {
        "benchmark": config["benchmark"],
        "method": config["method"],
        "preset": config.get("preset", ""),
        "lr": config["training"]["lr"],
        "weight_decay": config["training"]["weight_decay"],
        "settings": ", ".join(_shown(config)),
        "everything": key_of(_usual(config) | _settings_of(config) | config["training"]),
        **outcome,
    }


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(config["settings"])
    for name, value in _BEFORE_IT_CAME.get(config["method"], {}).items():
        settings.setdefault(name, value)
    return settings


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    return Training.defaults() | default_settings(config["method"])


def _shown(config: Mapping[str, Any]) -> Iterator[str]:
    usual = _usual(config)
    for name, value in (_settings_of(config) | config["training"]).items():
        is_usual = name in usual and value == usual[name]
        if name in _SHOWN or (name in _SHOWN_IF_CHANGED and not is_usual):
            yield f"{name}={value}"


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _error_columns(runs: pd.DataFrame) -> dict[str, str]:
    titles = {"average": "average error %", "fwi": "FWI %", "bwt": "BWT %"}
    return {title: _mean_and_spread(runs[key]) for key, title in titles.items()}


def _mean_and_spread(values: pd.Series) -> str:
    known = values.dropna()  # joint training has no FWI and no BWT error
    if known.empty:
        return "–"
    mean = f"{known.mean():.2f}"
    return mean if len(known) == 1 else f"{mean} ± {known.std():.2f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
