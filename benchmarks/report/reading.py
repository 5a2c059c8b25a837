"""Read runs from folders and studies; what cannot be read is named, never a reason to stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.runs.kept import read_study
from benchmarks.runs.records import CONFIG, ERRORS, OUTCOME, DamagedRunError, Run, read_run

TEST = "test"
_TOLERANCE = 0.01  # in %; outcomes have four decimals


@dataclass
class Found:
    """What was found.

    :param runs: finished runs, named by their place.
    :param unfinished: folders of runs without an outcome.
    :param problems: what was not read, or not counted, and why: (place, reason).
    """

    runs: list[Run] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_runs(*places: Path) -> Found:
    """Read all runs of some studies, and at or below some folders.

    :param places: files of studies, and folders. Runs of a study are named STUDY/RUN, others
        by their place below the folder, with its own name before it if there are several.
    """
    found = Found()
    for place in places:
        if place.is_file():
            _read_study(place, found)
        else:
            start = place if len(places) == 1 else place.parent
            for folder in _run_folders(place):
                name = folder.name if folder == start else folder.relative_to(start).as_posix()
                _read_folder(folder, name, found)
    return found


def _run_folders(place: Path) -> Iterator[Path]:
    for folder in sorted(path for path in [place, *place.rglob("*")] if path.is_dir()):
        if (folder / OUTCOME).exists() or _is_begun(folder / CONFIG):
            yield folder


def _is_begun(path: Path) -> bool:
    """Whether it is the configuration of a run, not of something else."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and {"benchmark", "method", "seed"} <= config.keys()


def _read_folder(folder: Path, name: str, found: Found) -> None:
    if not (folder / OUTCOME).exists():
        found.unfinished.append(name)
        return
    try:
        _count(replace(read_run(folder), name=name), found)
    except DamagedRunError as error:
        found.problems.append((name, f"not counted: {error.reason}"))


def _read_study(path: Path, found: Found) -> None:
    try:
        for run in read_study(path).runs.values():
            _count(replace(run, name=f"{path.name.removesuffix('.csv.xz')}/{run.name}"), found)
    except DamagedRunError as error:
        found.problems.append((path.name, f"not counted: {error.reason}"))


def _count(run: Run, found: Found) -> None:
    """Take a run in, unless its outcome contradicts its metrics."""
    for key, metric in ERRORS.items():
        recorded = run.values(metric)["value"]
        if key in run.outcome and len(recorded):
            summed_up, last = run.outcome[key], 100 * recorded.iloc[-1]
            if abs(summed_up - last) > _TOLERANCE:
                reason = f"the outcome says {key} {summed_up:.4f}, the metrics {last:.4f}"
                found.problems.append((run.name, f"not counted: {reason}"))
                return
    found.runs.append(run)
