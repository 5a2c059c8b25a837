"""The report's tables of what runs cost and how they were made."""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.report.cells import in_sections, statistic_cell
from benchmarks.report.comparing import Comparison, Entry
from benchmarks.report.document import Cell, Column, Section, Table
from benchmarks.report.settings import changed_settings
from benchmarks.report.statistics import NONE, number


def cost_table(comparison: Comparison) -> Table:
    """What the runs cost.

    :param comparison: what to show.
    """
    entries = {entry.label: entry for entry in comparison.entries}
    figures: dict[str, Callable[[Entry], Cell]] = {
        "gradient evaluations": lambda e: statistic_cell(
            e.statistic("gradient_evaluations"), decimals=0
        ),
        "training time, s": lambda e: statistic_cell(e.statistic("seconds"), decimals=0),
        "peak memory, MB": lambda e: Cell(_largest(e, "peak_megabytes")),
        "stored by the method, MB": lambda e: Cell(number(e.statistic("memory_bytes").mean / 1e6)),
    }
    return Table(
        "Cost of one run, lower is cheaper: mean ± standard deviation over seeds; the peak memory "
        "of the process is the largest of all seeds.",
        [Column("method", numeric=False), *(Column(title) for title in figures)],
        in_sections(
            entries,
            lambda label: [Cell(label), *(show(entries[label]) for show in figures.values())],
        ),
    )


def settings_table(comparison: Comparison) -> Table:
    """Seeds and settings of every entry.

    :param comparison: what to show.
    """
    entries = {entry.label: entry for entry in comparison.entries}

    def row(label: str) -> list[Cell]:
        entry = entries[label]
        seeds = ", ".join(str(run.seed) for run in entry.runs)
        changed = ", ".join(changed_settings(entry.method, entry.settings))
        training = ", ".join(f"{name}={value}" for name, value in entry.training.items())
        presets = ", ".join(dict.fromkeys(run.preset for run in entry.runs if run.preset))
        texts = (seeds, presets, training, changed)
        return [Cell(label), *(Cell(text or NONE) for text in texts)]

    return Table(
        "Seeds, preset, training, and the settings of the method that are not its defaults.",
        [Column(t, numeric=False) for t in ("method", "seeds", "preset", "training", "settings")],
        in_sections(entries, row),
    )


def origin_table(comparison: Comparison) -> Table:
    """With what, and on which data, the runs were made.

    :param comparison: what to show.
    """
    found: dict[str, dict[str, None]] = {}
    for config in (run.config for run in comparison.runs):
        parts = {"commit": config["git_commit"], "python": config["python"], **config["versions"]}
        for name, value in (parts | {"threads": config["threads"]}).items():
            found.setdefault(name, {})[str(value)] = None
    rows = [(name, ", ".join(values)) for name, values in found.items()]
    rows += [(f"data {name}", value) for name, value in comparison.data.items()]
    rows += [("own arrays", comparison.npz)] if comparison.npz else []
    return Table(
        "What the runs were made with; several values where runs differ.",
        [Column("what", numeric=False), Column("value", numeric=False)],
        [Section("", [[Cell(name), Cell(value)] for name, value in rows])],
    )


def _largest(entry: Entry, key: str) -> str:
    return number(max(entry.by_seed(key).values(), default=math.nan), 0)
