"""Read the folders of runs; what cannot be read is named, never a reason to stop."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from avalanche_dco.metrics import average_error, bwt_error, fwi_error
from benchmarks.runs.records import (
    ERRORS,
    DamagedRunError,
    checked_outcome,
    numbers_of,
    whole_number,
)

TEST = "test"
_FOLDER = re.compile(r".+-seed-?\d+-[0-9a-f]{8}")
_TOLERANCE = 0.01  # in %; the files have four decimals


@dataclass(frozen=True)
class Run:
    """A finished run.

    :param folder: where it was read, relative to the folder of all runs.
    :param config: the whole of ``config.json``.
    :param outcome: errors in % and costs by name; NaN where the run does not tell.
    :param matrix: errors in %, a row per training, a column per task; None if unreadable.
    """

    folder: str
    config: dict[str, Any]
    outcome: dict[str, float]
    matrix: np.ndarray | None

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return self.config["benchmark"]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config["method"]

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return self.config["seed"]

    @property
    def preset(self) -> str:
        """Name of the preset; empty in runs made before there were several."""
        return str(self.config.get("preset") or "")

    @property
    def split(self) -> str:
        """Which data the errors are of: ``test`` or ``validation``."""
        return str(self.config.get("split") or TEST)

    @property
    def npz(self) -> str:
        """File and hash of the user's own arrays; empty if the benchmark's own data was used."""
        stored = self.config.get("npz") or ""
        return " ".join(map(str, stored.values())) if isinstance(stored, dict) else str(stored)

    @property
    def training(self) -> dict[str, Any]:
        """How the network was trained."""
        return self.config.get("training") or {}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method, as stored."""
        return self.config.get("settings") or {}

    @property
    def trained_once(self) -> bool:
        """Whether there is one training for several tasks, as in joint training."""
        return self.matrix is not None and len(self.matrix) == 1 < self.matrix.shape[1]


@dataclass
class Found:
    """What is below a folder.

    :param runs: finished runs, by folder.
    :param unfinished: folders of runs without an outcome.
    :param problems: what was not read, or not counted, and why: (file or folder, reason).
    """

    runs: list[Run] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_runs(*folders: Path) -> Found:
    """Read all runs at or below some folders.

    :param folders: where to look. Runs are called by their place below it, with its own name
        before it if there are several.
    """
    found = Found()
    for folder in folders:
        start = folder if len(folders) == 1 else folder.parent
        for place in sorted(path for path in [folder, *folder.rglob("*")] if path.is_dir()):
            if _is_run(place):
                _read_run(place, place.relative_to(start).as_posix(), found)
    return found


def _is_run(folder: Path) -> bool:
    named_so = _FOLDER.fullmatch(folder.name) is not None
    return named_so or all((folder / name).is_file() for name in ("config.json", "outcome.json"))


def _read_run(folder: Path, name: str, found: Found) -> None:
    if not (folder / "outcome.json").exists():
        found.unfinished.append(name)
        return
    try:
        config = _checked_config(_read_json(folder / "config.json"))
    except (OSError, ValueError, RecursionError) as error:
        found.problems.append((f"{name}/config.json", f"unreadable, run not counted: {error}"))
        return
    try:
        outcome = numbers_of(_read_json(folder / "outcome.json"))
    except (OSError, ValueError, RecursionError) as error:
        found.problems.append((f"{name}/outcome.json", f"unreadable, run not counted: {error}"))
        return
    try:
        checked_outcome(folder)
    except DamagedRunError as error:
        found.problems.append((name, f"not counted: {error.reason}"))
        return
    matrix = None
    try:
        matrix = _read_matrix(folder / "errors.csv")
    except (OSError, ValueError) as error:
        found.problems.append((f"{name}/errors.csv", f"unreadable, run not in figures: {error}"))
    contradiction = None if matrix is None else _contradiction(outcome, matrix)
    if contradiction is not None:
        found.problems.append((name, f"not counted: {contradiction}"))
        return
    found.runs.append(Run(name, config, outcome, matrix))


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_int=whole_number)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def _checked_config(config: dict[str, Any]) -> dict[str, Any]:
    for key, kind in (("benchmark", str), ("method", str), ("seed", int)):
        if not isinstance(config.get(key), kind):
            raise ValueError(f"'{key}' is {config.get(key)!r}, which is no {kind.__name__}")
    for key in ("training", "settings"):
        if not isinstance(config.get(key, {}), dict):
            raise ValueError(f"'{key}' is no JSON object")
    json.dumps(config, ensure_ascii=False).encode()  # raises for what no file can hold
    return config


def _read_matrix(path: Path) -> np.ndarray:
    """The errors in %; NaN where a task was not evaluated."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        cells = {
            (int(row["after_experience"]), int(row["experience"])): float(row["error_percent"])
            for row in rows
        }
    except (KeyError, TypeError) as error:
        raise ValueError(
            "its columns are not after_experience, experience, error_percent"
        ) from error
    if not cells:
        raise ValueError("it has no rows")
    trainings = sorted({training for training, _ in cells})
    tasks = sorted({task for _, task in cells})
    if tasks != list(range(len(tasks))):
        raise ValueError(f"its experiences are {tasks}, not 0 to {len(tasks) - 1}")
    matrix = np.full((len(trainings), len(tasks)), np.nan)
    for (training, task), percent in cells.items():
        matrix[trainings.index(training), task] = percent
    return matrix


def learned_at(matrix: np.ndarray) -> dict[int, int]:
    """For each task the row right after its training; a single row is the training of all."""
    return {task: min(task, len(matrix) - 1) for task in range(matrix.shape[1])}


def _contradiction(outcome: dict[str, float], matrix: np.ndarray) -> str | None:
    """How outcome and matrix differ, or None if they agree."""
    if not 1 <= len(matrix) <= matrix.shape[1]:
        return f"errors.csv has {len(matrix)} trainings of {matrix.shape[1]} tasks"
    rows = learned_at(matrix)
    for key, function in zip(ERRORS, (average_error, fwi_error, bwt_error), strict=True):
        told, computed = outcome[key], function(matrix, rows)
        if abs(told - computed) > _TOLERANCE:  # False if either is NaN
            return f"outcome.json says {key} {told:.4f}, errors.csv gives {computed:.4f}"
    return None
