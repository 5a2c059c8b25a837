"""The tables and the figure that compare all methods on all streams, tuned alike.

The study ``comparison`` has the runs on test data, ``comparison-tuning/STREAM`` the search on
validation data that chose their settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from avalanche_dco.errors import DCOError
from benchmarks.report import overview
from benchmarks.report.comparing import Entry
from benchmarks.report.error_tables import Shown, read_entries, seeds_in_words
from benchmarks.report.figures import RC, svg_text
from benchmarks.report.reading import TEST
from benchmarks.report.search_notes import search_notes
from benchmarks.report.settings import key_of
from benchmarks.report.statistics import NONE, number
from benchmarks.runs.kept import Study, read_study, study_path
from benchmarks.runs.training import Training

STREAMS = {
    "split-mnist": "Split MNIST",
    "permuted-mnist": "Permuted MNIST, 5 tasks",
    "permuted-mnist-10": "Permuted MNIST, 10 tasks",
    "permuted-mnist-20": "Permuted MNIST, 20 tasks",
    "mnist-fashion": "MNIST → Fashion",
    "fashion-mnist": "Fashion → MNIST",
    "cifar-10": "Split CIFAR-10",
    "cifar-100-noisy": "CIFAR-100, noisy labels",
}
BENCHMARKS = {
    "cifar-10": "split5-cifar10.npz-345496a3",
    "cifar-100-noisy": "split10-cifar100_noisy.npz-d6908971",
}
"""What runs call the streams that have another name here."""
STUDY, TUNING = "comparison", "comparison-tuning"
_KRON = "dco-kron"
_ADDED = (("MAS", "mas", "<"), ("SGP", "sgp", ">"), ("OWM", "owm", "h"))
_ROWS = {
    row.method: row
    for row in sorted(
        (*overview.ROWS, *(overview.Row(*one) for one in _ADDED)),
        key=lambda row: (not row.marker, row.title.startswith("**")),  # ours and the bound last
    )
    if row.preset != "paper"
}


class Measured(NamedTuple):
    """What is known of a stream.

    :param entries: the runs with the chosen settings by method, the lowest error first.
    :param tuning: the runs of the search, and what it chose.
    """

    entries: Mapping[str, Entry]
    tuning: Study

    def point(self, method: str) -> tuple[float, float]:
        """Mean training time over Naive's, NaN if that is not known, and mean error."""
        entry, naive = self.entries[method], self.entries.get("naive")
        seconds = math.nan if naive is None else naive.statistic("seconds").mean
        return entry.statistic("seconds").mean / seconds, entry.statistic("average").mean


def comparison(results: Path, names: list[str]) -> Shown:
    """All methods on one stream, the lowest error first."""
    (stream,) = names
    if stream not in STREAMS:
        raise DCOError(f"there is no stream '{stream}'; there are {', '.join(STREAMS)}.")
    measured = _measured(results).get(stream)
    if measured is None:
        return Shown([], "Not measured yet.")
    kron = measured.entries.get(_KRON)
    rows = [
        {
            "method": _ROWS[name].title,
            "average error %": str(entry.statistic("average")),
            "less DCO-KRON's": entry.paired(kron, "average").written("+")
            if kron and entry is not kron
            else NONE,
            "FWI %": number(entry.statistic("fwi").mean),
            "BWT %": number(entry.statistic("bwt").mean),
            "time against Naive": number(measured.point(name)[0], 1),
        }
        for name, entry in measured.entries.items()
    ]
    titles = {name: _title(name) for name in measured.entries}
    notes = [
        seeds_in_words(list(titles.values()), list(measured.entries.values())),
        *search_notes(measured.tuning, measured.entries, titles),
    ]
    return Shown(rows, "\n".join(f"- {note}" for note in notes))


def ranks(results: Path, names: list[str]) -> Shown:
    """The best replay-free method of each stream, and where DCO-KRON is."""
    rows, behind = [], []
    for stream, title in STREAMS.items():
        best, error, place, difference = "not measured yet", NONE, NONE, NONE
        if measured := _measured(results).get(stream):
            free = [entry for entry in measured.entries.values() if not entry.mark]
            best, error = _title(free[0].method), str(free[0].statistic("average"))
            kron = measured.entries.get(_KRON)
            if kron and len(free) > 1:
                place = f"{1 + free.index(kron)} of {len(free)}"
                rival = free[0] if free[0] is not kron else free[1]
                paired = kron.paired(rival, "average")
                difference = f"{paired.written('+')} ({_title(rival.method)})"
                behind.append(paired.mean if rival is free[0] else 0.0)
        rows.append(
            {
                "stream": title,
                "best replay-free method": best,
                "its error %": error,
                "DCO-KRON's place": place,
                "DCO-KRON's error less the best other's": difference,
            }
        )
    if not behind:
        return Shown(rows, "DCO-KRON has not been measured yet.")
    wins = sum(row["best replay-free method"] == _title(_KRON) for row in rows)
    return Shown(
        rows,
        f"DCO-KRON is first on {wins} of {len(behind)} measured streams, and at most "
        f"{number(max(behind))} points from the first.",
    )


def figure(results: Path, names: list[str]) -> Shown:
    """The figure on the page, if there is one yet."""
    if not _measured(results):
        return Shown([], "Not measured yet.")
    return Shown([], "![Average error against training time, by stream](figures/comparison.svg)")


def figure_svg(results: Path) -> str | None:
    """Average error against training time, one panel per stream; None if nothing was measured."""
    streams = _measured(results)
    if not streams:
        return None
    columns = min(2, len(streams))
    lines = math.ceil(len(streams) / columns)
    with mpl.rc_context(RC):
        drawing = Figure(figsize=(1 + 2.4 * columns, 1.2 + 2.6 * lines), layout="constrained")
        panels = list(drawing.subplots(lines, columns, squeeze=False).flat)
        drawn: dict[str, Any] = {}
        for axes, (stream, measured) in zip(panels, streams.items(), strict=False):
            points = {name: measured.point(name) for name in measured.entries}
            for name, point in points.items():
                drawn[name] = overview.draw(axes, _ROWS[name], *point)
            compared = [points[name] for name, one in measured.entries.items() if not one.mark]
            overview.finish_panel(axes, STREAMS[stream], compared)
        for axes in panels[::columns]:
            axes.set_ylabel("average error (%)")
        for axes in panels[len(streams) - columns : len(streams)]:
            axes.set_xlabel("training time / Naive's")
        for axes in panels[len(streams) :]:
            axes.remove()
        legend = {_title(name): drawn[name] for name in _ROWS if name in drawn}
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": 2 * columns}
        drawing.legend(legend.values(), legend.keys(), **where)
        svg = svg_text(drawing)
    return overview.described(svg, *(comparison(results, [stream]) for stream in streams))


def _measured(results: Path) -> dict[str, Measured]:
    """The streams that have runs."""
    files = [study_path(STUDY, results), *sorted((results / TUNING).glob("*"))]
    return _read(results, tuple((one, one.stat().st_mtime_ns) for one in files if one.exists()))


@cache
def _read(results: Path, changed: tuple[Any, ...]) -> dict[str, Measured]:
    """The streams that have runs, read once for all tables of a page.

    :param changed: when the files were changed.
    """
    entries = [one for one in read_entries(results, [STUDY]) if one.runs[0].split == TEST]
    by_stream = {
        stream: [one for one in entries if one.runs[0].benchmark == BENCHMARKS.get(stream, stream)]
        for stream in STREAMS
    }
    return {stream: _tuned(results, stream, own) for stream, own in by_stream.items() if own}


def _tuned(results: Path, stream: str, entries: list[Entry]) -> Measured:
    """The entries of a stream that have the settings which were chosen for it."""
    path = study_path(f"{TUNING}/{stream}", results)
    tuning = read_study(path) if path.exists() else Study()
    methods = (tuning.chosen or {"methods": {}})["methods"]
    chosen = {name: one["settings"] for name, one in methods.items()}
    tuned = [one for one in entries if one.method in chosen and _has(one, chosen[one.method])]
    if sorted(one.method for one in tuned) != sorted({one.method for one in entries}):
        raise DCOError(
            f"the study {STUDY} needs one kind of runs of every method on {stream}, with the "
            f"settings that {TUNING}/{stream} chose. It has {', '.join(e.label for e in entries)}; "
            f"chosen are {chosen}. Keep that search, and the runs of `compare --chosen` with it."
        )
    tuned.sort(key=lambda entry: entry.statistic("average").mean)
    return Measured({entry.method: entry for entry in tuned}, tuning)


def _has(entry: Entry, settings: Mapping[str, Any]) -> bool:
    own = Training.defaults() | entry.training | entry.settings
    return all(key_of(own[name]) == key_of(value) for name, value in settings.items())


def _title(method: str) -> str:
    return _ROWS[method].title.strip("*")
