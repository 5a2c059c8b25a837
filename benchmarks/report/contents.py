"""What the report says: made from the runs, nothing typed. The templates say in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.report import figures, tables
from benchmarks.report.comparing import SWEPT, Comparison, Entry, sweeps
from benchmarks.report.document import Picture, Report
from benchmarks.report.paper_numbers import SWEEPS, SWEEPS_SOURCE
from benchmarks.report.reading import TEST, Found
from benchmarks.report.settings import changed_settings


def make_report(found: Found, comparisons: list[Comparison]) -> Report:
    """The whole report."""
    counted = sum(len(one.runs) for one in comparisons)
    rows = [(name, "unfinished: no outcome.json yet") for name in found.unfinished]
    left_out = tables.text_table(
        "Folders and files that are not, or not wholly, part of the above, and why.",
        ["where", "why"],
        rows + found.problems,
    )
    return {
        "summary": f"{counted} finished runs, {len(found.unfinished)} unfinished, "
        f"{len(found.problems)} problems with files. All errors are in per cent; lower is better.",
        "comparisons": [_part(number, one) for number, one in enumerate(comparisons, start=1)],
        "left_out": left_out if rows or found.problems else None,
    }


def pictures(report: Report) -> list[Picture]:
    """The figures that Markdown shows: all but the heat maps."""
    swept = [sweep["picture"] for part in report["comparisons"] for sweep in part["sweeps"]]
    return [*swept, *(picture for part in report["comparisons"] for picture in part["curves"])]


def _part(number: int, comparison: Comparison) -> dict[str, Any]:
    """What the report says about one comparison."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{number} {comparison.benchmark}".lower())
    curves, matrices = [], []
    if comparison.split == TEST:  # others serve to choose settings: the numbers are enough
        curves = [
            figures.average_error_picture(comparison, f"{name}-average-error"),
            figures.fwi_bwt_picture(comparison, f"{name}-fwi-bwt"),
        ]
        matrices = figures.matrix_pictures(comparison, f"{name}-matrix")
    errors = [tables.error_table(comparison), tables.difference_table(comparison)]
    return {
        "title": comparison.title,
        "description": _described(comparison),
        "errors": [table for table in errors if table],
        "sweeps": list(_sweep_parts(comparison, name)),
        "curves": [picture for picture in curves if picture],
        "matrices": matrices,
        "cost": tables.cost_table(comparison),
        "settings": [_configured(entry) for entry in comparison.entries],
        "origin": tables.origin_table(comparison),
        "commands": list(dict.fromkeys(run.config["command"] for run in comparison.runs)),
    }


def _configured(entry: Entry) -> str:
    """Seeds, preset, training, and the settings of the method that are not its defaults."""
    seeds = ", ".join(str(run.seed) for run in entry.runs)
    presets = ", ".join(dict.fromkeys(run.preset for run in entry.runs if run.preset))
    training = [f"{name}={value}" for name, value in entry.training.items()]
    settings = ", ".join(training + changed_settings(entry.method, entry.settings))
    return f"{entry.label}: seeds {seeds}; preset {presets}; {settings}"


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


def _sweep_parts(comparison: Comparison, name: str) -> Iterator[dict[str, Any]]:
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
        yield {
            "setting": setting,
            "caption": f"Final average error against {setting}, all other settings the same; bars: "
            f"standard deviation over seeds.{beside} Lower is better.",
            "picture": figures.sweep_picture(title, f"{name}-{setting}", found, printed),
            "tables": [
                tables.sweep_table(one, printed.get(one.method, {}), SWEEPS_SOURCE) for one in found
            ],
        }
