"""Folders as runs leave them, with errors that are easy to check."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from avalanche_dco.metrics import average_error, bwt_error, fwi_error
from benchmarks.runs.records import read_run, seal, write_outcome

TRAINING = {"epochs": 2, "batch_size": 8, "lr": 0.1, "weight_decay": 0.0}


def errors_of(average: float, tasks: int = 2) -> np.ndarray:
    """The last row is the average; every task but the last was learned to half of it."""
    errors = np.full((tasks, tasks), 50.0)
    errors[np.diag_indices(tasks)] = average / 2
    errors[-1] = average
    return errors


def write_run(
    out: Path,
    method: str,
    seed: int,
    average: float = 8.0,
    *,
    errors: np.ndarray | None = None,
    outcome: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a finished run and return its folder.

    :param average: makes the error matrix, see :func:`errors_of`, unless that is given.
    :param errors: the error matrix in %.
    :param outcome: replaces entries of ``outcome.json``; None takes one out.
    :param config: replaces entries of ``config.json``.
    """
    matrix = errors_of(average) if errors is None else errors
    made = {
        "benchmark": "split-digits", "method": method, "seed": seed, "preset": "paper",
        "training": TRAINING, "settings": {}, "split": "test", "data": {"digits": "ab" * 32},
        "command": f"python -m benchmarks run --methods {method}", "python": "3.11.7",
        "versions": {"torch": "2.9.9"}, "git_commit": "c0ffee", "threads": "1",
    }  # fmt: skip
    made |= config
    digest = sha256(json.dumps([made, matrix.tolist()]).encode()).hexdigest()[:8]
    folder = out / f"{made['benchmark']}-run-seed{seed}-{digest}"
    folder.mkdir(parents=True)
    learned_at = {task: min(task, len(matrix) - 1) for task in range(matrix.shape[1])}
    summary = {
        "average": average_error(matrix, learned_at),
        "fwi": fwi_error(matrix, learned_at),
        "bwt": bwt_error(matrix, learned_at),
        "seconds": 12.0, "gradient_evaluations": 3456, "memory_bytes": 7_890_000,
        "peak_megabytes": 123.0,
    }  # fmt: skip
    summary = {n: value for n, value in (summary | (outcome or {})).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(made))
    write_outcome(folder, summary, metrics_of(matrix))
    return folder


def metrics_of(matrix: np.ndarray) -> pd.DataFrame:
    """What the logger records of a run with these errors in %."""
    once = len(matrix) == 1 < matrix.shape[1]
    rows = []
    for step in range(1, len(matrix) + 1):
        seen = dict.fromkeys(range(matrix.shape[1]), 0) if once else {j: j for j in range(step)}
        values = [("ErrorMatrix", task, error) for task, error in enumerate(matrix[step - 1])]
        for metric, error in (
            ("AverageError", average_error),
            ("FWIError", fwi_error),
            ("BWTError", bwt_error),
        ):
            values.append((metric, None, error(matrix[:step], seen)))
        trained = (step, None if once else step - 1)
        rows += [(metric, "test", task, *trained, error / 100) for metric, task, error in values]
    columns = ["metric", "stream", "experience", "trained", "training_experience", "value"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"experience": "Int64", "training_experience": "Int64"})


def matrix_of(folder: Path) -> np.ndarray:
    """The error matrix in % that a finished run has recorded."""
    cells = read_run(folder).values("ErrorMatrix")
    matrix = cells.pivot_table(index="trained", columns="experience", values="value")
    return 100 * matrix.to_numpy()


def change_run(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a finished run as if the run had written it so.

    :param folder: the run's folder.
    :param name: the file.
    :param content: what it shall hold.
    """
    (folder / name).write_bytes(content)
    summary = json.loads((folder / "outcome.json").read_text())
    seal(folder, {key: value for key, value in summary.items() if key != "checksum"})
