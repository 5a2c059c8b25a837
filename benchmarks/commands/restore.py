"""Lay kept runs out in folders again, so that a command goes on from them.

Example:
  python -m benchmarks restore --study comparison-tuning/permuted-mnist --out runs/tuning
  python -m benchmarks sweep ... --out runs/tuning

A run, comparison or search does not repeat runs that it finds in --out. So a long one can be kept
while it is under way, and continued on another machine. Folders that are there already stay.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from avalanche_dco.errors import SettingError
from benchmarks.runs.kept import RESULTS, read_study, study_path
from benchmarks.runs.records import write_config, write_outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", required=True, metavar="NAME", help="the study with the runs")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="default: runs"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results"
    )


def run(args: argparse.Namespace) -> int:
    """Write the folders, and say how many were new."""
    path = study_path(args.study, args.results)
    if not path.exists():
        raise SettingError(f"there is no study {path}; name one of those below {args.results}.")
    runs = read_study(path).runs
    missing = [one for one in runs.values() if not (args.out / one.name).exists()]
    for one in missing:
        write_config(args.out / one.name, one.config)
        write_outcome(args.out / one.name, one.outcome, one.metrics)
    print(f"{args.out}: {len(missing)} runs written, {len(runs) - len(missing)} were there already")
    return 0
