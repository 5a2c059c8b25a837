"""Folders as runs leave them, with errors that are easy to check."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from avalanche_dco.metrics import average_error, bwt_error, fwi_error
from benchmarks.runs.records import seal

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
    :param config: replaces entries of ``config.json``; None takes one out.
    """
    matrix = errors_of(average) if errors is None else errors
    made = {
        "benchmark": "split-digits", "method": method, "seed": seed, "preset": "paper",
        "training": TRAINING, "settings": {}, "split": "test", "data": {"digits": "ab" * 32},
        "command": f"python -m benchmarks run --methods {method}", "python": "3.11.7",
        "versions": {"torch": "2.9.9"}, "git_commit": "c0ffee", "threads": "1",
    }  # fmt: skip
    made = {name: value for name, value in (made | config).items() if value is not None}
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
    lines = [f"{i},{j},{error:.4f}" for (i, j), error in np.ndenumerate(matrix)]
    (folder / "config.json").write_text(json.dumps(made))
    (folder / "errors.csv").write_text(
        "\n".join(["after_experience,experience,error_percent", *lines])
    )
    seal(folder, summary)
    return folder


def change_run(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a finished run as if the run had written it so.

    :param folder: the run's folder.
    :param name: the file.
    :param content: what it shall hold.
    """
    (folder / name).write_bytes(content)
    summary = json.loads((folder / "outcome.json").read_text())
    seal(folder, {key: value for key, value in summary.items() if key != "checksum"})
