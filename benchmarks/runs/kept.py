"""Studies: finished runs of any number of folders, or other measurements, in one file each.

``NAME.csv.xz`` is compressed text. Its first line is ``# `` and JSON: the configurations and
outcomes of all runs, the settings that were chosen from them if any were, and a checksum of the
whole file. The table below it has the metrics of the runs; its column ``run`` is the place of the
run in the first line, counted from 0. A study of other measurements has them in the table, and how
they were made in the first line. ``pandas.read_csv(path, skiprows=1)`` reads the table.
"""

from __future__ import annotations

import argparse
import io
import lzma
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from avalanche_dco.errors import DCOError
from avalanche_dco.persistence.files import write_atomically
from benchmarks.runs.records import (
    DamagedRunError,
    Run,
    metrics_text,
    read_metrics,
    sealed,
    unsealed,
)

RESULTS = Path(__file__).resolve().parent.parent / "results"


@dataclass
class Study:
    """Finished runs that belong together.

    :param chosen: what ``sweep`` has chosen from them, or a list for several benchmarks; None if
        nothing was.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    chosen: Any = None

    def add(self, runs: Iterable[Run]) -> int:
        """Add runs; those that are there already are recognised."""
        before = len(self.runs)
        for run in runs:
            kept = self.runs.setdefault(run.name, run)
            if kept.outcome != run.outcome or not kept.metrics.equals(run.metrics):
                raise DCOError(
                    f"{run.name} is in the study with another outcome. Take that run out of the "
                    "study first, or keep this one in another study."
                )
        return len(self.runs) - before


def study_path(name: str, results: Path = RESULTS) -> Path:
    """The file of a study."""
    return results / f"{name}.csv.xz"


def add_out_argument(parser: argparse.ArgumentParser, study: str) -> None:
    """Declare --out of a study's command."""
    parser.add_argument(
        "--out",
        type=Path,
        default=study_path(study),
        metavar="FILE",
        help="file of the study, NAME.csv.xz; default: that in benchmarks/results",
    )


def read_study(path: Path) -> Study:
    """A study; raises unless every byte is as it was written."""
    content, table = _read(path, "Restore the file.")
    try:
        frame = read_metrics(table)
        numbers, frame = frame["run"], frame.drop(columns="run")
        runs = {
            name: Run(name, **one, metrics=frame[numbers == number].reset_index(drop=True))
            for number, (name, one) in enumerate(content["runs"].items())
        }
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}. Restore the file."
        raise DamagedRunError(path, reason) from error
    return Study(runs, content["chosen"])


def kept_run(path: Path, name: str, make: Callable[[], Run]) -> Run:
    """A run of a study, which is made and added first if it is not there yet."""
    study = read_study(path) if path.exists() else Study()
    if name not in study.runs:
        made = make()
        study = read_study(path) if path.exists() else Study()  # others may have added runs
        study.add([made])
        write_study(path, study)
    return study.runs[name]


def write_study(path: Path, study: Study) -> None:
    """Write a study in one stroke."""
    frames = [run.metrics.assign(run=number) for number, run in enumerate(study.runs.values())]
    metrics = metrics_text(pd.concat(frames), "run")
    runs = {run.name: {"config": run.config, "outcome": run.outcome} for run in study.runs.values()}
    _write(path, metrics, {"chosen": study.chosen, "runs": runs})


def read_measurements(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The measurements of a study, and how it was made; raises unless every byte is as written."""
    config, values = _read(path, "Restore the file, or measure again.")
    return pd.read_csv(io.BytesIO(values), float_precision="round_trip"), config


def write_measurements(path: Path, frame: pd.DataFrame, config: Mapping[str, Any]) -> None:
    """Write the measurements of a study that are not of runs, and how it was made."""
    values = frame.to_csv(index=False, lineterminator="\n", float_format="%.8g")
    _write(path, values, config)


def add_measurements(
    path: Path, column: str, case: str, frame: pd.DataFrame, config: Mapping[str, Any]
) -> None:
    """Write the measurements of one case into a study of several, in place of older ones."""
    frame = frame.copy()
    frame.insert(0, column, case)
    configs: dict[str, Any] = {}
    if path.exists():
        others, configs = read_measurements(path)
        frame = pd.concat([others[others[column] != case], frame], ignore_index=True)
    write_measurements(path, frame, configs | {case: dict(config)})


def _write(path: Path, table: str, content: Mapping[str, Any]) -> None:
    first = sealed(content, table.encode(), indent=None)
    write_atomically(path, lzma.compress(f"# {first}{table}".encode(), preset=9))


def _read(path: Path, advice: str) -> tuple[dict[str, Any], bytes]:
    """The first line and the table."""
    archive = lzma.LZMADecompressor()
    try:
        text = archive.decompress(path.read_bytes())
        if not archive.eof or archive.unused_data:
            raise ValueError("the file is cut off, or has more than was written")
        first, end, table = text.partition(b"\n")
        return unsealed(first.removeprefix(b"# ") + end, table, indent=None), table
    except (ValueError, OSError, RecursionError, EOFError, lzma.LZMAError) as error:
        raise DamagedRunError(path, f"{type(error).__name__}: {error}. {advice}") from error
