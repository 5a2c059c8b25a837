"""List the benchmarks, the methods with their grids, and the presets.

Example:
  python -m benchmarks list
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rich import box
from rich.table import Table

from benchmarks.commands.summary import marked, wide_console
from benchmarks.methods import METHODS
from benchmarks.presets import PRESETS
from benchmarks.runs.search import Ladder
from benchmarks.streams.catalogue import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""


def run(args: argparse.Namespace) -> int:
    """Print everything that can be asked for."""
    console = wide_console()
    for table in (_benchmarks(), _methods(), _presets(), _grids()):
        console.print(table)
    return 0


def _benchmarks() -> Table:
    shown = _table("Benchmarks (--benchmark)", "name", "what it is", "data below --data-root")
    for name, task in TASKS.items():
        data = ", ".join(files.folder for files in task.files) or "none needed"
        shown.add_row(name, task.summary, data + (" (or --npz FILE)" if task.arrays_like else ""))
    return shown


def _methods() -> Table:
    shown = _table(
        "Methods (--methods)", "name", "settings (--set)", "grid", "ladder (sweep --tries)"
    )
    for name, method in METHODS.items():
        shown.add_row(
            marked(name),
            ", ".join(method.arguments),
            _values(method.grid),
            _ladders(method.ladders),
        )
    return shown


def _presets() -> Table:
    shown = _table(
        "Presets (--preset); what is not shown has the method's default",
        "preset", "benchmark", "training (--training)", "methods",
    )  # fmt: skip
    for name, benchmarks in PRESETS.items():
        for benchmark, preset in benchmarks.items():
            methods = (f"{m}: {_values(settings)}" for m, settings in preset.methods.items())
            shown.add_row(name, benchmark, _values(preset.training.as_json()), "\n".join(methods))
    return shown


def _grids() -> Table:
    shown = _table("Grids of the benchmarks, instead of the methods' own", "benchmark", "grids")
    for benchmark, preset in PRESETS["paper"].items():
        grids = (f"{method}: {_values(grid)}" for method, grid in preset.grids.items())
        shown.add_row(benchmark, "\n".join(grids))
    return shown


def _table(title: str, *columns: str) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown


def _ladders(ladders: Mapping[str, Ladder]) -> str:
    """Where each begins, and its values if they are not ..., 0.3, 1, 3, 10, ..."""
    return ", ".join(
        f"{name} from {ladder.start}" + (f" in {ladder.values}" if ladder.values else "")
        for name, ladder in ladders.items()
    )


def _values(values: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(values).items())  # type: ignore[call-overload]
