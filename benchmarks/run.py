"""Run methods on one benchmark and print average, FWI and BWT error.

Examples:
  python -m benchmarks run --benchmark split-digits --methods naive ewc dco
  python -m benchmarks run --benchmark split-mnist --methods naive dco --seeds 1 --data-root ~/data
  python -m benchmarks run --benchmark permuted-digits --methods dco --set k=200 --set theta=0.5
  python -m benchmarks run --benchmark split-digits --methods gpm --training lr=0.01

Every run gets a folder below --out; one that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from avalanche_dco.errors import SettingError
from benchmarks.learning import OnExperience, learn
from benchmarks.methods import METHODS, get_method
from benchmarks.presets import PRESETS, Preset
from benchmarks.records import read_outcome, run_folder, surroundings, write_run
from benchmarks.tasks import TASKS, missing_files

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--benchmark", required=True, choices=sorted(TASKS))
    parser.add_argument("--methods", required=True, nargs="+", choices=sorted(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data-root", type=Path, help="folder that holds MNIST/raw/...")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument(
        "--training",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        help="epochs, batch_size, lr or weight_decay, instead of the preset's (repeatable)",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        help="a setting of the method, instead of the preset's (repeatable)",
    )


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word, such as gradient_source=logits


def run(args: argparse.Namespace) -> int:
    """Run what was asked for."""
    missing = missing_files(args.benchmark, args.data_root)
    if missing:
        raise SettingError(
            f"--benchmark {args.benchmark} needs data that is not there. Give --data-root a folder "
            f"that holds {', '.join(missing)}."
        )
    preset = _trained_by(PRESETS[args.benchmark], dict(args.training))
    jobs = [
        Job(args.benchmark, method, seed, preset, preset.settings(method) | dict(args.settings))
        for seed in args.seeds
        for method in args.methods
    ]
    for job in jobs:  # all of them before the first, which may take hours
        get_method(job.method).check(job.settings)
    rows = run_all(jobs, args.out, args.data_root)
    Console().print(table(rows))
    return 0


def _trained_by(preset: Preset, changes: dict[str, Any]) -> Preset:
    unknown = changes.keys() - preset.training.keys()
    if unknown:
        raise SettingError(
            f"--training has no {sorted(unknown)}; it has {sorted(preset.training)}."
        )
    for name, value in changes.items():
        if not isinstance(value, int | float) or value < 0:
            raise SettingError(f"--training {name}={value} must be a number, 0 or more.")
    return replace(preset, **changes)


@dataclass(frozen=True)
class Job:
    """One run to make.

    :param benchmark: name of the benchmark.
    :param method: name of the method.
    :param seed: seed of everything random.
    :param preset: how the network is trained.
    :param settings: settings of the method.
    """

    benchmark: str
    method: str
    seed: int
    preset: Preset
    settings: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """All that determines the run."""
        name = {"benchmark": self.benchmark, "method": self.method, "seed": self.seed}
        return name | {"training": self.preset.training, "settings": self.settings}


def run_all(jobs: list[Job], out: Path | None, data_root: Path | None = None) -> list[Row]:
    """Run jobs one after the other under a progress bar.

    :param jobs: what to run.
    :param out: where folders of runs are; None to keep nothing.
    :param data_root: folder with the data.
    """
    rows = []
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        bar = progress.add_task("")
        for job in jobs:
            progress.reset(
                bar, description=f"{job.benchmark}: {job.method}, seed {job.seed}", total=None
            )
            rows.append(
                _run_one(
                    job,
                    out,
                    data_root,
                    lambda done, total: progress.update(bar, completed=done, total=total),
                )
            )
    return rows


def _run_one(
    job: Job, out: Path | None, data_root: Path | None, on_experience: OnExperience
) -> Row:
    folder = None if out is None else run_folder(out, job.config)
    summary = None if folder is None else read_outcome(folder)
    if summary is None:
        made_by = surroundings()
        outcome = learn(
            job.benchmark,
            job.method,
            job.preset,
            seed=job.seed,
            settings=job.settings,
            data_root=data_root,
            on_experience=on_experience,
        )
        if folder is not None:
            write_run(folder, job.config, made_by, outcome)
        summary = outcome.summary
    return {"benchmark": job.benchmark, "method": job.method, "seed": job.seed} | summary


def table(rows: list[Row]) -> Table:
    """One line per run, errors in per cent."""
    shown = Table(title="Test error in %, lower is better", box=box.SIMPLE)
    shown.add_column("benchmark", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    shown.add_column("seed", justify="right")
    for title in ("average", "FWI", "BWT", "seconds", "kept MB"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(
            row["benchmark"],
            row["method"],
            str(row["seed"]),
            *(f"{row[key]:.2f}" for key in ("average", "fwi", "bwt")),
            f"{row['seconds']:.0f}",
            f"{row['memory_bytes'] / 1e6:.1f}",
        )
    return shown
