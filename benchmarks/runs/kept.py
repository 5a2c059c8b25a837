"""Studies: finished runs of any number of folders, in two files.

``NAME.json`` has the configurations and outcomes of all runs, the settings that were chosen from
them if any were, and a checksum of both files. ``NAME.csv`` has their metrics; its column ``run``
is the place of the run in ``NAME.json``, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    :param runs: the runs, by name.
    :param chosen: what ``sweep`` has chosen from them; None if nothing was.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    chosen: dict[str, Any] | None = None

    def add(self, runs: Iterable[Run]) -> int:
        """Add runs; those that are there already are recognised.

        :param runs: the runs.
        :return: how many are new.
        """
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
    """The JSON file of a study.

    :param name: its name, such as ``table-1``.
    :param results: the folder of all studies.
    """
    return results / f"{name}.json"


def read_study(path: Path) -> Study:
    """A study; raises unless every byte is as it was written.

    :param path: its JSON file.
    """
    try:
        metrics = path.with_suffix(".csv").read_bytes()
        content = unsealed(path.read_bytes(), metrics)
        frame = read_metrics(metrics)
        numbers, frame = frame["run"], frame.drop(columns="run")
        runs = {
            name: Run(name, **one, metrics=frame[numbers == number].reset_index(drop=True))
            for number, (name, one) in enumerate(content["runs"].items())
        }
    except (ValueError, OSError, RecursionError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}. Restore {path.name} and its CSV file."
        raise DamagedRunError(path, reason) from error
    return Study(runs, content["chosen"])


def write_study(path: Path, study: Study) -> None:
    """Write both files of a study, each in one stroke.

    :param path: its JSON file.
    :param study: what to write.
    """
    frames = [run.metrics.assign(run=number) for number, run in enumerate(study.runs.values())]
    metrics = metrics_text(pd.concat(frames), "run")
    runs = {run.name: {"config": run.config, "outcome": run.outcome} for run in study.runs.values()}
    content = {"chosen": study.chosen, "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(".csv"), metrics)
    write_atomically(path, sealed(content, metrics.encode()))
