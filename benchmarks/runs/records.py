"""What a run leaves behind: one folder, named by what was run, written atomically.

``config.json`` (what was run, and how), ``errors.csv`` (the error matrix) and, last,
``outcome.json``, which marks the end and carries a checksum of all three.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from avalanche_dco.errors import DCOError
from avalanche_dco.persistence.files import checksum, write_atomically
from benchmarks.runs.learning import Outcome

_PACKAGES = ("avalanche-lib", "torch", "torchvision", "numpy", "pandas")
_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_CONFIG, _ERRORS, _OUTCOME = FILES = ("config.json", "errors.csv", "outcome.json")


ERRORS = ("average", "fwi", "bwt")
COSTS = ("gradient_evaluations", "seconds", "memory_bytes", "peak_megabytes")


class DamagedRunError(DCOError):
    """A finished run's files are not as they were written.

    :param folder: the run's folder.
    :param reason: what is wrong with it.
    """

    def __init__(self, folder: Path, reason: str):
        super().__init__(f"{folder}: {reason}")
        self.reason = reason


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write what is going to be run, before it is.

    :param folder: the run's folder; made if it does not exist.
    :param config: the configuration, and the :func:`surroundings`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _CONFIG, json.dumps(config, indent=2) + "\n")


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write ``errors.csv`` and, last, ``outcome.json``.

    :param folder: the run's folder, with its configuration in it.
    :param outcome: what the run has shown.
    """
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["after_experience", "experience", "error_percent"])
    for i, line in enumerate(outcome.errors):
        rows.writerows([i, j, f"{error:.4f}"] for j, error in enumerate(line))
    write_atomically(folder / _ERRORS, table.getvalue())
    seal(folder, {name: _rounded(value) for name, value in outcome.summary.items()})


def seal(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write ``outcome.json`` with the checksum of the whole folder.

    :param folder: the run's folder, all other files in it.
    :param summary: what to write.
    """
    write_atomically(folder / _OUTCOME, _sealed(folder, summary))


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """What :func:`write_outcome` summed up there, or None if no run has finished there.

    A folder whose files are not as they were written counts as unfinished, with a warning.
    """
    if not (folder / _OUTCOME).exists():
        return None
    try:
        return checked_outcome(folder)
    except DamagedRunError as error:
        warnings.warn(f"{error}; the run is made again.", stacklevel=2)
    return None


def checked_outcome(folder: Path) -> dict[str, Any]:
    """What :func:`write_outcome` summed up there; raises unless every byte is as it was written.

    :param folder: a finished run's folder.
    """
    try:
        text = (folder / _OUTCOME).read_bytes().decode()  # line ends as they are
        summary = json.loads(text, parse_int=whole_number)
        del summary["checksum"]
        if text == _sealed(folder, summary):
            numbers_of(summary)  # raises for what is none
            return summary
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        reason = f"its files cannot be read ({type(error).__name__}: {error})"
        raise DamagedRunError(folder, reason) from error
    raise DamagedRunError(folder, "its files are not as they were written")


def numbers_of(outcome: Mapping[str, Any]) -> dict[str, float]:
    """Errors and costs as floats, NaN where there is none; a ValueError for what is no number.

    :param outcome: what ``outcome.json`` holds.
    """
    for key in ERRORS + COSTS:
        value = outcome.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"'{key}' is {value!r}, which is no number")
    return {
        key: math.nan if outcome.get(key) is None else float(outcome[key]) for key in ERRORS + COSTS
    }


def whole_number(text: str) -> int:
    """A whole number of a JSON file; a ValueError for one that no float can hold.

    :param text: its digits.
    """
    try:
        float(int(text))
    except OverflowError as error:
        raise ValueError(f"{text[:10]}... ({len(text)} digits) is too large a number") from error
    return int(text)


def read_files(folder: Path) -> dict[str, str]:
    """The text of a finished run's files, by name."""
    return {name: (folder / name).read_text() for name in FILES}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a finished run that another machine has made.

    :param folder: where to.
    :param files: what :func:`read_files` read there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        write_atomically(folder / name, files[name])


def surroundings(threads: int | None = None) -> dict[str, Any]:
    """Command, versions and machine: what one needs to run it again.

    :param threads: threads of the run; as many as the environment says if None.
    """
    return {
        "command": _command(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in _PACKAGES},
        "git_commit": _git_commit(),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))
        if threads is None
        else str(threads),
    }


def _sealed(folder: Path, summary: Mapping[str, Any]) -> str:
    """The text of ``outcome.json``."""
    others = [(folder / name).read_bytes() for name in (_CONFIG, _ERRORS)]
    digest = checksum([json.dumps(summary, sort_keys=True).encode(), *others])
    return json.dumps({**summary, "checksum": digest}, indent=2) + "\n"


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _command() -> str:
    """The command line, without this machine's paths to the package and the data."""
    program, arguments = Path(sys.argv[0]), list(sys.argv[1:])
    for option, shown in (("--data-root", lambda path: "DIR"), ("--npz", lambda path: path.name)):
        if option in arguments[:-1]:  # where the data lay says nothing about the run
            place = arguments.index(option) + 1
            arguments[place] = shown(Path(arguments[place]))
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
