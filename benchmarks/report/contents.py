"""What the report says: made from the runs, nothing typed. The templates say in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.report import cost_tables, figures, tables
from benchmarks.report.comparing import Comparison
from benchmarks.report.document import Cell, Column, Picture, Section, Table
from benchmarks.report.paper_numbers import SWEEPS, SWEEPS_SOURCE
from benchmarks.report.reading import TEST, Found
from benchmarks.report.sweeps import SWEPT, sweeps


@dataclass(frozen=True)
class SweepPart:
    """A sweep of one setting: a figure, and a table for every method."""

    setting: str
    caption: str
    picture: Picture
    tables: Sequence[Table]


@dataclass(frozen=True)
class ComparisonPart:
    """What the report says about one comparison.

    :param title: its heading.
    :param description: how most of it was made, in one line.
    :param errors: tables of errors and differences.
    :param sweeps: the sweeps among its entries.
    :param curves: figures of errors.
    :param matrices: heat maps, one per entry.
    :param cost: what the runs cost.
    :param configuration: settings, versions and data.
    :param commands: what made the runs.
    """

    title: str
    description: str
    errors: Sequence[Table]
    sweeps: Sequence[SweepPart]
    curves: Sequence[Picture]
    matrices: Sequence[Picture]
    cost: Table
    configuration: Sequence[Table]
    commands: Sequence[str]


@dataclass(frozen=True)
class Report:
    """A whole report.

    :param summary: how many runs there are.
    :param overview: all benchmarks in one table, if there are several.
    :param comparisons: one after the other.
    :param left_out: what was not counted, and why.
    """

    summary: str
    overview: Table | None = None
    comparisons: Sequence[ComparisonPart] = field(default_factory=tuple)
    left_out: Table | None = None

    @property
    def pictures(self) -> list[Picture]:
        """The figures that Markdown shows: all but the heat maps."""
        swept = [sweep.picture for one in self.comparisons for sweep in one.sweeps]
        return [*swept, *(picture for one in self.comparisons for picture in one.curves)]


def make_report(found: Found, comparisons: list[Comparison]) -> Report:
    """The whole report.

    :param found: what was read.
    :param comparisons: what :func:`.compare` made of it.
    """
    tests = [one for one in comparisons if one.split == TEST]
    counted = sum(len(one.runs) for one in comparisons)
    return Report(
        f"{counted} finished runs, {len(found.unfinished)} unfinished, {len(found.problems)} "
        f"problems with files. All errors are in per cent; lower is better.",
        tables.overview_table(tests) if len(tests) > 1 else None,
        [_part(number, comparison) for number, comparison in enumerate(comparisons, start=1)],
        _left_out(found) if found.unfinished or found.problems else None,
    )


def _part(number: int, comparison: Comparison) -> ComparisonPart:
    name = re.sub(r"[^a-z0-9]+", "-", f"{number} {comparison.benchmark}".lower())
    differences = tables.difference_table(comparison)
    curves, matrices = [], []
    if comparison.split == TEST:  # others serve to choose settings: the numbers are enough
        curves = [
            figures.average_error_picture(comparison, f"{name}-average-error"),
            figures.fwi_bwt_picture(comparison, f"{name}-fwi-bwt"),
        ]
        matrices = figures.matrix_pictures(comparison, f"{name}-matrix")
    return ComparisonPart(
        comparison.title,
        _described(comparison),
        [tables.error_table(comparison), *([differences] if differences else [])],
        list(_sweep_parts(comparison, name)),
        [picture for picture in curves if picture],
        matrices,
        cost_tables.cost_table(comparison),
        [cost_tables.settings_table(comparison), cost_tables.origin_table(comparison)],
        list(dict.fromkeys(run.config["command"] for run in comparison.runs)),
    )


def _described(comparison: Comparison) -> str:
    """How most of it was made, in one line."""
    tasks = sorted({run.tasks for run in comparison.runs} - {0})
    presets = sorted({run.preset for run in comparison.runs})
    parts = [f"{' or '.join(map(str, tasks))} task{'' if tasks == [1] else 's'}"] if tasks else []
    training = ", ".join(
        f"{key.replace('_', ' ')} {value}" for key, value in comparison.training.items()
    )
    parts.append(f"preset {' and '.join(presets)}")
    parts.append(f"training, unless a row says otherwise: {training}")
    parts += [f"own arrays: {comparison.npz}"] if comparison.npz else []
    if comparison.split != TEST:
        parts.append(f"errors on the {comparison.split} split, not on test data")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _sweep_parts(comparison: Comparison, name: str) -> Iterator[SweepPart]:
    for setting in SWEPT:
        found = sweeps(comparison, setting)
        if not found:
            continue
        printed = {
            sweep.method: numbers
            for sweep in found
            if (numbers := SWEEPS.get((comparison.published, sweep.method, setting)))
        }
        title = f"Average error against {setting}, {comparison.title}"
        beside = f" Dashed: {SWEEPS_SOURCE}." if printed else ""
        yield SweepPart(
            setting,
            f"Final average error against {setting}, all other settings the same; bars: standard "
            f"deviation over seeds.{beside} Lower is better.",
            figures.sweep_picture(title, f"{name}-{setting}", found, printed),
            [tables.sweep_table(one, printed.get(one.method, {}), SWEEPS_SOURCE) for one in found],
        )


def _left_out(found: Found) -> Table:
    rows = [(name, "unfinished: no outcome.json yet") for name in found.unfinished]
    return Table(
        "Folders and files that are not, or not wholly, part of the above, and why.",
        [Column("where", numeric=False), Column("why", numeric=False)],
        [Section("", [[Cell(name), Cell(why)] for name, why in rows + found.problems])],
    )
