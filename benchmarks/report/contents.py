"""What the report says, in which order: made from the runs, nothing typed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.report import circumstances, figures, tables
from benchmarks.report.comparing import Comparison
from benchmarks.report.document import (
    Cell,
    Column,
    Document,
    Folded,
    Gallery,
    Heading,
    Listing,
    Paragraph,
    Part,
    Section,
    Table,
)
from benchmarks.report.paper_numbers import SWEEPS, SWEEPS_SOURCE
from benchmarks.report.reading import TEST, Found
from benchmarks.report.sweeps import SWEPT, sweeps


def make_document(found: Found, comparisons: list[Comparison]) -> Document:
    """The whole report.

    :param found: what was read.
    :param comparisons: what :func:`.compare` made of it.
    """
    return Document("Comparison of continual-learning methods", list(_parts(found, comparisons)))


def _parts(found: Found, comparisons: list[Comparison]) -> Iterator[Part]:
    tests = [one for one in comparisons if one.split == TEST]
    counted = sum(len(one.runs) for one in comparisons)
    yield Paragraph(
        f"{counted} finished runs, {len(found.unfinished)} unfinished, {len(found.problems)} "
        f"problems with files. All errors are in per cent; lower is better."
    )
    if len(tests) > 1:
        yield Heading(2, "All benchmarks")
        yield tables.overview_table(tests)
    for number, comparison in enumerate(comparisons, start=1):
        name = re.sub(r"[^a-z0-9]+", "-", f"{number} {comparison.benchmark}".lower())
        yield Heading(2, comparison.title)
        yield from _comparison_parts(comparison, name)
    if found.unfinished or found.problems:
        yield Heading(2, "Not counted, or not wholly read")
        yield _left_out(found)


def _comparison_parts(comparison: Comparison, name: str) -> Iterator[Part]:
    yield Paragraph(_described(comparison))
    yield tables.error_table(comparison)
    differences = tables.difference_table(comparison)
    if differences is not None:
        yield differences
    yield from _sweep_parts(comparison, name)
    if comparison.split == TEST:  # others serve to choose settings: the numbers are enough
        yield from _picture_parts(comparison, name)
    yield Heading(3, "Cost")
    yield circumstances.cost_table(comparison)
    yield Heading(3, "Configuration")
    yield Folded("Settings, versions, data and commands", _configuration(comparison))


def _picture_parts(comparison: Comparison, name: str) -> Iterator[Part]:
    curves = figures.average_error_picture(comparison, f"{name}-average-error")
    bars = figures.fwi_bwt_picture(comparison, f"{name}-fwi-bwt")
    pictures = [picture for picture in (curves, bars) if picture]
    if pictures:
        yield Heading(3, "Average error, learning and forgetting")
        yield Gallery("", pictures)
    matrices = figures.matrix_pictures(comparison, f"{name}-matrix")
    if matrices:
        yield Heading(3, "Error matrices")
        yield Gallery(
            "Error in % on every task (across) after every training (down), mean over seeds; "
            "framed: the task just learned. Darker is lower, and lower is better.",
            matrices,
            page_only=True,
        )


def _described(comparison: Comparison) -> str:
    """How most of it was made, in one line."""
    tasks = sorted({run.tasks for run in comparison.runs} - {0})
    presets = sorted({run.preset for run in comparison.runs} - {""})
    parts = [f"{' or '.join(map(str, tasks))} task{'' if tasks == [1] else 's'}"] if tasks else []
    training = ", ".join(
        f"{key.replace('_', ' ')} {value}" for key, value in comparison.training.items()
    )
    parts += [f"preset {' and '.join(presets)}"] if presets else []
    parts += [f"training, unless a row says otherwise: {training}"] if training else []
    parts += [f"own arrays: {comparison.npz}"] if comparison.npz else []
    if comparison.split != TEST:
        parts.append(f"errors on the {comparison.split} split, not on test data")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _sweep_parts(comparison: Comparison, name: str) -> Iterator[Part]:
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
        picture = figures.sweep_picture(title, f"{name}-{setting}", found, printed)
        yield Heading(3, f"Sweep of {setting}")
        yield Gallery(_sweep_caption(setting, bool(printed)), [picture])
        for sweep in found:
            yield tables.sweep_table(sweep, printed.get(sweep.method, {}), SWEEPS_SOURCE)


def _sweep_caption(setting: str, printed: bool) -> str:
    beside = f" Dashed: {SWEEPS_SOURCE}." if printed else ""
    return (
        f"Final average error against {setting}, all other settings the same; bars: standard "
        f"deviation over seeds.{beside} Lower is better."
    )


def _configuration(comparison: Comparison) -> list[Table | Listing | Paragraph]:
    return [
        circumstances.settings_table(comparison),
        circumstances.origin_table(comparison),
        Paragraph("Commands that made the runs:"),
        Listing(list(dict.fromkeys(run.config["command"] for run in comparison.runs))),
    ]


def _left_out(found: Found) -> Table:
    rows = [(name, "unfinished: no outcome.json yet") for name in found.unfinished]
    return Table(
        "Folders and files that are not, or not wholly, part of the above, and why.",
        [Column("where", numeric=False), Column("why", numeric=False)],
        [Section("", [[Cell(name), Cell(why)] for name, why in rows + found.problems])],
    )
