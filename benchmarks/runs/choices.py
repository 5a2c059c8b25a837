"""The file with what a sweep has chosen, which ``compare --chosen`` and ``sweep --start`` read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avalanche_dco.errors import DCOError, SettingError
from avalanche_dco.persistence.files import write_atomically
from benchmarks.runs.kept import read_study
from benchmarks.runs.planning import Plan
from benchmarks.runs.training import Settings

Choices = dict[str, dict[str, Any]]
"""By method: its settings, and how they were found."""
CHOSEN = "chosen.json"
"""What the file is called, in the folder of the runs."""


def write_choices(path: Path, plan: Plan, seeds: Sequence[int], choices: Choices) -> None:
    """Write what was chosen, for ``compare --chosen``."""
    content = {
        "benchmark": plan.benchmark,
        "preset": plan.request.preset,
        "split": "validation",
        "seeds": list(seeds),
        "methods": choices,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_choices(path: Path, benchmark: str | None) -> Mapping[str, Settings]:
    """The chosen settings by method.

    :param path: what :func:`write_choices` wrote, or the file of a study that has it.
    :param benchmark: on which they must have been chosen; None for any.
    """
    choices = choices_in(path, benchmark, "--chosen")
    return {name: dict(one["settings"]) for name, one in choices.items()}


def choices_in(path: Path, benchmark: str | None, option: str) -> Choices:
    """What was chosen and in how many tries, by method; as :func:`read_choices`.

    :param option: the argument that names the file.
    """
    try:
        kept = path.name.endswith(".csv.xz")
        content = read_study(path).chosen if kept else json.loads(path.read_text())
        if isinstance(content, list):  # of a study, for several benchmarks
            content = next((one for one in content if one["benchmark"] == benchmark), content[0])
        chosen = {
            name: {"settings": dict(one["settings"]), "tries": one.get("tries")}
            for name, one in content["methods"].items()
        }
        made_for = content["benchmark"]
    except (DCOError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{option} {path} cannot be read ({type(error).__name__}: {error}). It has to be a "
            "file that `python -m benchmarks sweep` has written, or a study with such choices."
        ) from error
    if benchmark is not None and made_for != benchmark:
        raise SettingError(
            f"{option} {path} was chosen on {made_for}, not on {benchmark}; run `python -m "
            f"benchmarks sweep` on {benchmark}."
        )
    return chosen
