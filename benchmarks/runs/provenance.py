"""Where a result comes from: command, versions, commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("avalanche-lib", "torch", "torchvision", "numpy", "pandas")
_REPOSITORY = Path(__file__).resolve().parent.parent.parent


def provenance(threads: int | None = None) -> dict[str, Any]:
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
