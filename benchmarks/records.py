"""What a run leaves behind: one folder, named by what was run, written atomically."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.learning import Outcome

_PACKAGES = ("avalanche-lib", "torch", "torchvision", "numpy", "pandas")
_REPOSITORY = Path(__file__).resolve().parent.parent


def run_folder(out: Path, config: dict[str, Any]) -> Path:
    """The folder of the run with this configuration."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return out / f"{config['benchmark']}-{config['method']}-seed{config['seed']}-{digest}"


def write_run(
    folder: Path, config: dict[str, Any], made_by: dict[str, Any], outcome: Outcome
) -> None:
    """Write ``config.json``, ``errors.csv`` and, last, ``outcome.json``, which marks the end.

    :param folder: where to; made if it does not exist.
    :param config: all that determines the run.
    :param made_by: :func:`surroundings` when it began; the source may have changed since.
    :param outcome: what it has shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", json.dumps(config | made_by, indent=2) + "\n")
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["after_experience", "experience", "error_percent"])
    for i, line in enumerate(outcome.errors):
        rows.writerows([i, j, f"{error:.4f}"] for j, error in enumerate(line))
    _write(folder / "errors.csv", table.getvalue())
    summary = {name: round(value, 4) for name, value in outcome.summary.items()}
    _write(folder / "outcome.json", json.dumps(summary, indent=2) + "\n")


def read_outcome(folder: Path) -> dict[str, float] | None:
    """What :func:`write_run` summed up there, or None if no run has finished there."""
    path = folder / "outcome.json"
    return json.loads(path.read_text()) if path.exists() else None


def surroundings() -> dict[str, Any]:
    """Command, versions and machine: what one needs to run it again."""
    return {
        "command": _command(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in _PACKAGES},
        "git_commit": _git_commit(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
    }


def _command() -> str:
    """The command line, without this machine's path to the package."""
    program, arguments = Path(sys.argv[0]), list(sys.argv[1:])
    if "--data-root" in arguments[:-1]:  # where the data lay says nothing about the run
        arguments[arguments.index("--data-root") + 1] = "DIR"
    if program.name == "__main__.py":
        return shlex.join(["python", "-m", program.parent.name, *arguments])
    return shlex.join(["python", program.name, *arguments])


def _git_commit() -> str | None:
    """The commit of the source, or None where it is not a git checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_REPOSITORY), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
