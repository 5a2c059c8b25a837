"""Write report.html, report.md and results.csv from the folders of runs.

Examples:
  python -m benchmarks report --runs runs --out report
  python -m benchmarks report --runs runs/mnist runs/cifar --out report

report.html is one file that needs nothing else; report.md has its figures, all but the error
matrices, in report-figures/ beside it; results.csv has one line per finished run. Runs are found
anywhere below --runs, which may also be the file of a study (see `keep`).
Unfinished runs, unreadable files and runs whose files were changed are named in the report and not
counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from avalanche_dco.errors import SettingError
from avalanche_dco.persistence.files import write_atomically
from benchmarks.report.comparing import compare
from benchmarks.report.contents import make_report, pictures
from benchmarks.report.document import FIGURES, to_html, to_markdown
from benchmarks.report.reading import read_runs
from benchmarks.runs.records import COSTS, ERRORS, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, nargs="+", default=[Path("runs")], help="default: runs"
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="default: report")


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    for path in write_report(args.runs, args.out):
        print(path)
    return 0


def write_report(places: Sequence[Path], out: Path) -> list[Path]:
    """Write ``report.html``, ``report.md`` and ``results.csv``.

    :param places: folders of runs, at any depth, and files of studies.
    """
    for place in places:
        if not place.exists():
            raise SettingError(
                f"{place} is not there; give --runs the --out of your runs, or a study's file."
            )
    found = read_runs(*places)
    if not (found.runs or found.unfinished or found.problems):
        raise SettingError(
            f"there is no run below {' or '.join(map(str, places))}; make some, for example "
            "with: python -m benchmarks run --benchmark split-digits --methods naive dco "
            f"--out {places[0]}"
        )
    comparisons = compare(found)
    report = make_report(found, comparisons)
    files = {
        out / "report.html": to_html(report),
        out / "report.md": to_markdown(report),
        out / "results.csv": _csv([run for one in comparisons for run in one.runs]),
    }
    drawn = {out / FIGURES / f"{one.name}.svg": one.svg for one in pictures(report)}
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for path, text in (drawn | files).items():
        write_atomically(path, text)
    for stale in set((out / FIGURES).glob("*.svg")) - drawn.keys():
        stale.unlink(missing_ok=True)  # another process may write the same report
    return list(files)


def _csv(runs: list[Run]) -> str:
    """One line per run; a column for every setting that any of them has."""
    rows = [
        {
            "benchmark": one.benchmark,
            "preset": one.preset,
            "npz": one.npz,
            "split": one.split,
            "method": one.method,
            "seed": one.seed,
            **{key: one.outcome.get(key) for key in (*ERRORS, *COSTS)},
            **{f"training.{name}": _value(value) for name, value in one.training.items()},
            **{f"settings.{name}": _value(value) for name, value in one.settings.items()},
            "git_commit": one.config["git_commit"],
            "folder": one.name,
        }
        for one in runs
    ]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _value(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
