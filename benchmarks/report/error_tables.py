"""Tables of errors from the runs that are kept, for README.md and docs/.

A row is one :class:`Entry`: runs that differ by seed only. At most six columns; what tells a
method's rows apart is in its label, and what differs from the preset in a note below the table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avalanche_dco.errors import DCOError
from benchmarks.methods import DIRECTION_CONSTRAINED, get_method
from benchmarks.presets import PRESETS
from benchmarks.report.comparing import Entry, compare
from benchmarks.report.document import Rows, markdown_table
from benchmarks.report.paper_numbers import SWEEPS, TABLE_1
from benchmarks.report.reading import read_runs
from benchmarks.report.settings import default_settings, difference_words, in_words, is_number
from benchmarks.report.statistics import number
from benchmarks.runs.kept import study_path
from benchmarks.runs.training import Training, divided
from benchmarks.runs.values import with_derived

WIDEST = 6
"""Columns of a table, at most."""


@dataclass(frozen=True)
class Shown:
    """A table for a page."""

    rows: Rows
    note: str = ""

    def markdown(self) -> str:
        """The table, if it has rows, and the note below it."""
        if not self.rows:
            return self.note + "\n"
        table = markdown_table([list(self.rows[0]), *(list(row.values()) for row in self.rows)])
        return table + "\n" + (f"\n{self.note}\n" if self.note else "")


def errors(results: Path, names: list[str]) -> Shown:
    """All runs of some studies, seeds of one setting together."""
    entries = read_entries(results, names)
    labels = _labels(entries)
    several = len({one.runs[0].benchmark for one in entries}) > 1
    rows = [
        {
            **({"benchmark": entry.runs[0].benchmark} if several else {}),
            "method": label,
            **_error_columns(entry),
            "memory (MB)": _memory(entry),
        }
        for label, entry in zip(labels, entries, strict=True)
    ]
    return Shown(rows, _note(labels, entries))


def beside_paper(results: Path, names: list[str]) -> Shown:
    """All methods on a benchmark, the best first, with the paper's figures."""
    benchmark, *studies = names
    entries = [one for one in read_entries(results, studies) if one.runs[0].benchmark == benchmark]
    if not entries:
        raise DCOError(f"there are no runs of {benchmark} in the studies {studies} of {results}.")
    entries.sort(key=lambda one: one.statistic("average").mean)
    labels = _labels(entries)
    paper = TABLE_1.get(benchmark, {})
    rows = [
        {
            "method": label,
            **_error_columns(entry),
            **(
                {"paper %": number(paper.get(entry.method, math.nan))}
                if paper
                else {"minutes": number(entry.statistic("seconds").mean / 60, 1)}
            ),
            "memory (MB)": _memory(entry),
        }
        for label, entry in zip(labels, entries, strict=True)
    ]
    return Shown(rows, _note(labels, entries))


def settings(results: Path, names: list[str]) -> Shown:
    """The runs of some studies on one benchmark, by some settings of the method or the training.

    :param names: the studies, with commas between them, the benchmark and the settings.
    """
    studies, benchmark, *wanted = names
    entries = [
        e for e in read_entries(results, studies.split(",")) if e.runs[0].benchmark == benchmark
    ]
    found = {id(one): one.settings | one.runs[0].training for one in entries}
    entries.sort(key=lambda one: [_sortable(found[id(one)][name]) for name in wanted])
    shown = [[str(found[id(one)][name]) for name in wanted] for one in entries]
    rows = []
    for values, entry in zip(shown, entries, strict=True):
        if shown.count(values) > 1:
            raise DCOError(
                f"runs of {studies} with {', '.join(wanted)} = {', '.join(values)} differ in "
                f"something else: name that setting, too."
            )
        columns = {"seeds": str(len(entry.runs)), **_error_columns(entry)}
        for name in ("seeds", "FWI %"):  # FWI is the average less BWT
            if len(wanted) + len(columns) > WIDEST:
                del columns[name]
        rows.append(dict(zip(wanted, values, strict=True)) | columns)
    return Shown(
        rows, "" if "seeds" in rows[0] else seeds_in_words(list(map(", ".join, shown)), entries)
    )


def before_push(results: Path, names: list[str]) -> Shown:
    """Errors before the push, which the authors report, and after it.

    :param results: folder with the results.
    :param names: the study, the benchmark and, if its runs differ in one setting, that setting.
    """
    study, benchmark, *swept = names
    entries = [one for one in read_entries(results, [study]) if one.runs[0].benchmark == benchmark]
    if swept:
        (name,) = swept
        entries.sort(key=lambda one: _sortable(one.settings[name]))
        labels = [str(one.settings[name]) for one in entries]
        printed = [SWEEPS[benchmark, e.method, name].get(e.settings[name]) for e in entries]
    else:
        name = "changed in the preset"
        entries.sort(key=lambda one: len(deviations(one)))
        labels = [", ".join(deviations(one)) or "nothing" for one in entries]
        printed = [TABLE_1.get(benchmark, {}).get(one.method) for one in entries]
    rows = [
        {
            name: label,
            "before the push %": str(one.statistic("average_before_push")),
            "FWI %": str(one.statistic("fwi_before_push")),
            "BWT %": str(one.statistic("bwt_before_push")),
            "after the push %": str(one.statistic("average")),
            "paper %": "–" if figure is None else number(figure),
        }
        for label, one, figure in zip(labels, entries, printed, strict=True)
    ]
    return Shown(rows, seeds_in_words(labels, entries))


def penalty_steps(results: Path, names: list[str]) -> Shown:
    """Average errors by learning rate: Naive's, and DCO's with either step of the penalty."""
    naive: dict[Any, float] = {}
    of_dco: dict[Any, dict[str, float]] = {}
    for entry in read_entries(results, names):
        benchmark, lr = entry.runs[0].benchmark, entry.training["lr"]
        error = entry.statistic("average").mean
        if entry.method == "naive":
            naive[benchmark, lr] = error
        else:
            steps = of_dco.setdefault((benchmark, entry.settings["k"], lr), {})
            steps[entry.settings["penalty_step"]] = error
    return Shown(
        [
            {
                "benchmark": benchmark,
                "k": str(k),
                "lr": f"{lr:g}",
                "Naive %": number(naive[benchmark, lr]),
                "gradient step %": number(steps.get("gradient", math.nan)),
                "implicit step %": number(steps.get("implicit", math.nan)),
            }
            for (benchmark, k, lr), steps in sorted(of_dco.items())
        ]
    )


def read_entries(results: Path, studies: Sequence[str]) -> list[Entry]:
    """The entries of some studies; none for a study that is not there."""
    found = read_runs(*(study_path(name, results) for name in studies))
    entries = [entry for comparison in compare(found) for entry in comparison.entries]
    if found.problems:  # damaged studies, and runs that are in two of them
        raise DCOError("; ".join(f"{place}: {why}" for place, why in found.problems))
    return entries


def _labels(entries: Sequence[Entry]) -> list[str]:
    """The methods; where one has several rows, with what differs among them and from its preset."""
    labels = []
    for entry in entries:
        among = difference_words(_everything(entry), map(_everything, _siblings(entry, entries)))
        tuned = [in_words(name, entry.settings) for name in get_method(entry.method).grid]
        from_preset = deviations(entry)
        parts = [word for word in among if word in from_preset or word in tuned]
        if len({one.runs[0].preset for one in _siblings(entry, entries)}) > 1:
            parts.insert(0, f"preset {entry.runs[0].preset}")
        labels.append(f"{entry.method} ({', '.join(parts)})" if parts else entry.method)
    return labels


def _siblings(entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    def kind(one: Entry) -> tuple[str, str]:
        return one.method, one.runs[0].benchmark

    return [one for one in entries if kind(one) == kind(entry)]


def _everything(entry: Entry) -> dict[str, Any]:
    return Training.defaults() | entry.training | entry.settings


def is_published(entry: Entry) -> bool:
    """Whether runs of DCO or DCO-COMP have the settings of the paper and its authors' code."""
    paper = entry.runs[0].preset == "paper"
    return paper and entry.method in DIRECTION_CONSTRAINED and not deviations(entry)


def deviations(entry: Entry) -> list[str]:
    """In words, the settings that are not those of the run's preset."""
    run = entry.runs[0]
    preset = PRESETS[run.preset][run.config["protocol"]]
    training, own = divided(preset.methods.get(entry.method, {}))
    usual = Training.defaults() | preset.training.changed(training).as_json()
    usual |= with_derived(get_method(entry.method), default_settings(entry.method) | own)
    return difference_words(_everything(entry), [usual])


def _note(labels: Sequence[str], entries: Sequence[Entry]) -> str:
    """Seeds, and what differs from the preset and is in no label; what all share, once."""
    several = len({one.runs[0].benchmark for one in entries}) > 1
    places = [f" on {one.runs[0].benchmark}" if several else "" for one in entries]
    names = [label + place for label, place in zip(labels, places, strict=True)]
    presets = sorted({one.runs[0].preset for one in entries})
    parts = [seeds_in_words(names, entries), f"Preset: {' or '.join(presets)}."]
    words = [deviations(entry) for entry in entries]
    common = [word for word in words[0] if len(words) > 1 and all(word in one for one in words)]
    changed: dict[str, list[str]] = {}
    for name, label, own in zip(names, labels, words, strict=True):
        rest = ", ".join(word for word in own if word not in label and word not in common)
        changed.setdefault(rest, []).append(name)
    changed.pop("", None)
    changes = [f"all: {', '.join(common)}"] if common else []
    changes += [f"{', '.join(who)}: {rest}" for rest, who in changed.items()]
    return " ".join(parts + ([f"Changed or chosen: {'; '.join(changes)}."] if changes else []))


def seeds_in_words(names: Sequence[str], entries: Sequence[Entry]) -> str:
    """How many seeds most entries have, and which have another number.

    :param names: what to call each entry.
    """
    counts = [len(entry.runs) for entry in entries]
    usual = Counter(counts).most_common(1)[0][0]
    others = [f"{n} for {name}" for n, name in zip(counts, names, strict=True) if n != usual]
    return f"Seeds: {'; '.join([str(usual), *others])}."


def _sortable(value: Any) -> tuple[bool, Any]:
    return (False, float(value)) if is_number(value) else (True, str(value))


def _memory(entry: Entry) -> str:
    return number(entry.statistic("memory_bytes").mean / 1e6, 1)


def _error_columns(entry: Entry) -> dict[str, str]:
    titles = {"average": "average error %", "fwi": "FWI %", "bwt": "BWT %"}
    return {title: str(entry.statistic(key)) for key, title in titles.items()}
