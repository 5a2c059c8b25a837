"""Keep finished runs in a study: one file in benchmarks/results instead of a folder per run.

Examples:
  python -m benchmarks keep runs --study table-1
  python -m benchmarks keep runs/cifar-10 --study table-1-tuning/cifar-10

Every finished run at or below the folders is added to NAME.csv.xz, its configuration and outcome
to the first line and its metrics to the table below, which `pandas.read_csv(path, skiprows=1)`
reads. A run that is kept already is recognised, one of the same name with another outcome is
refused. If there is a damaged run nothing is written. The errors of every autoencoder and
compression update, most of a log of DCO's and read by no table, are left out. The settings that
`sweep` wrote to chosen.json go with the runs; `compare --chosen` takes the study, too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

from avalanche_dco.errors import DCOError, SettingError
from benchmarks.report.reading import read_runs
from benchmarks.runs.choices import CHOSEN
from benchmarks.runs.kept import RESULTS, Study, read_study, study_path, write_study

_OF_UPDATES = ("DCO_AutoencoderError", "DCO_CompressionError")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="folders of runs")
    parser.add_argument("--study", required=True, metavar="NAME", help="what the study is called")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results"
    )


def run(args: argparse.Namespace) -> int:
    """Add the runs, and say how many were new."""
    path = study_path(args.study, args.results)
    study = read_study(path) if path.exists() else Study()
    found = read_runs(*args.runs)
    if found.problems:
        named = "; ".join(f"{name}: {reason}" for name, reason in found.problems)
        raise DCOError(f"nothing was kept, because some runs are damaged: {named}")
    if not found.runs:
        raise SettingError(f"there is no finished run below {' or '.join(map(str, args.runs))}.")
    new = study.add(
        replace(one, name=Path(one.name).name, metrics=without_progress(one.metrics))
        for one in found.runs
    )
    for folder in args.runs:
        if (folder / CHOSEN).exists():
            study.chosen = json.loads((folder / CHOSEN).read_text())
    write_study(path, study)
    print(f"{path}: {new} runs added, {len(found.runs) - new} were kept already")
    for name in found.unfinished:
        print(f"left out, because it is not finished: {name}")
    return 0


def without_progress(metrics: pd.DataFrame) -> pd.DataFrame:
    """What a logger recorded, less the errors of single updates."""
    return metrics[~metrics["metric"].isin(_OF_UPDATES)].reset_index(drop=True)
