"""Run methods on one benchmark and print average, FWI and BWT error.

Examples:
  python -m benchmarks run --benchmark split-digits --methods naive ewc dco
  python -m benchmarks run --benchmark split-mnist --methods naive dco --seeds 1 --data-root ~/data
  python -m benchmarks run --benchmark permuted-digits --methods dco --set k=200 --set theta=0.5

Every run gets a folder below --out; one that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from avalanche_dco.errors import SettingError
from benchmarks.learning import OnExperience, learn
from benchmarks.methods import METHODS
from benchmarks.presets import PRESETS
from benchmarks.records import read_outcome, run_folder, write_run
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
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        help="a setting of the method, instead of the preset's (may be given several times)",
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
    jobs = [(args.benchmark, method, seed) for seed in args.seeds for method in args.methods]
    rows = run_all(jobs, args.out, args.data_root, dict(args.settings))
    Console().print(table(rows))
    return 0


def run_all(
    jobs: list[tuple[str, str, int]],
    out: Path | None,
    data_root: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> list[Row]:
    """Run jobs one after the other under a progress bar.

    :param jobs: benchmark, method and seed of each.
    :param out: where folders of runs are; None to keep nothing.
    :param data_root: folder with the data.
    :param settings: settings of the methods instead of the presets'.
    """
    rows = []
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        bar = progress.add_task("")
        for benchmark, method, seed in jobs:
            progress.reset(bar, description=f"{benchmark}: {method}, seed {seed}", total=None)
            rows.append(
                _run_one(
                    benchmark,
                    method,
                    seed,
                    out,
                    data_root,
                    settings or {},
                    lambda done, total: progress.update(bar, completed=done, total=total),
                )
            )
    return rows


def _run_one(
    benchmark: str,
    method: str,
    seed: int,
    out: Path | None,
    data_root: Path | None,
    settings: dict[str, Any],
    on_experience: OnExperience,
) -> Row:
    preset = PRESETS[benchmark]
    own = preset.methods.get(method, {}) | settings
    training = {k: v for k, v in asdict(preset).items() if k != "methods"}
    config = {
        "benchmark": benchmark,
        "method": method,
        "seed": seed,
        "training": training,
        "settings": own,
    }
    name = {"benchmark": benchmark, "method": method, "seed": seed}
    folder = None if out is None else run_folder(out, config)
    finished = None if folder is None else read_outcome(folder)
    if finished is not None:
        return name | finished
    outcome = learn(
        benchmark,
        method,
        preset,
        seed=seed,
        data_root=data_root,
        settings=own,
        on_experience=on_experience,
    )
    if folder is not None:
        write_run(folder, config, outcome)
    return name | outcome.summary


def table(rows: list[Row]) -> Table:
    """One line per run, errors in per cent."""
    shown = Table(title="Test error in %, lower is better")
    shown.add_column("benchmark")
    shown.add_column("method")
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
