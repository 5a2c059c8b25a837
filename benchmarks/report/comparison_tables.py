"""The tables and figures that compare all methods on all streams, tuned alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from avalanche_dco.errors import DCOError
from benchmarks.report import overview
from benchmarks.report.comparing import Comparison, Entry
from benchmarks.report.comparison_study import STREAMS, Measured, measured_streams
from benchmarks.report.document import Picture
from benchmarks.report.error_tables import Shown, is_published, read_entries, seeds_in_words
from benchmarks.report.figures import RC, average_error_picture, fwi_bwt_picture, svg_text
from benchmarks.report.reading import TEST
from benchmarks.report.search_notes import search_notes
from benchmarks.report.statistics import NONE, number

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


class Panel(NamedTuple):
    """A kind of figure that every stream has.

    :param title: what it shows, for those who do not see it.
    """

    title: str
    draw: Callable[[Comparison, str], Picture | None]


PANELS = {
    "average-error": Panel("Average error against tasks learned", average_error_picture),
    "fwi-bwt": Panel("FWI and BWT error", fwi_bwt_picture),
}


def comparison(results: Path, names: list[str]) -> Shown:
    """All methods on every measured stream, each under a heading, the lowest error first.

    :param names: the studies with runs of the published settings, which are shown as well.
    """
    published = [
        entry
        for entry in read_entries(results, names)
        if entry.runs[0].split == TEST and is_published(entry)
    ]
    parts = []
    for stream, measured in measured_streams(results).items():
        about = f"### {STREAMS[stream].title}\n\n{STREAMS[stream].about}\n\n"
        own = [one for one in published if one.runs[0].benchmark == stream]
        parts.append(about + _table(measured, own).markdown())
    return Shown([], "\n".join(parts).rstrip() or _missing({}))


def _table(measured: Measured, published: Sequence[Entry] = ()) -> Shown:
    """A stream's table; what has the published settings has no time in the same study."""
    kron = measured.entries.get(_KRON)
    titles = {name: _title(name) for name in measured.entries}
    shown = [
        (_ROWS[name].title, entry, number(measured.point(name)[0], 1))
        for name, entry in measured.entries.items()
    ]
    shown += [(f"**{_published_title(entry)}**", entry, NONE) for entry in published]
    rows = [
        {
            "method": title,
            "average error %": str(entry.statistic("average")),
            "less DCO-KRON's": entry.paired(kron, "average").written("+")
            if kron and entry is not kron
            else NONE,
            "FWI %": number(entry.statistic("fwi").mean),
            "BWT %": number(entry.statistic("bwt").mean),
            "time against Naive": time,
        }
        for title, entry, time in sorted(shown, key=lambda row: row[1].statistic("average").mean)
    ]
    entries = [*measured.entries.values(), *published]
    notes = [
        seeds_in_words([*titles.values(), *map(_published_title, published)], entries),
        *search_notes(measured.tuning, measured.entries, titles),
        *_published_note(published),
    ]
    return Shown(rows, "\n".join(f"- {note}" for note in notes))


def _published_title(entry: Entry) -> str:
    return f"{_title(entry.method)} (published settings)"


def _published_note(published: Sequence[Entry]) -> Iterator[str]:
    """What the rows with published settings are, and their errors where the authors take them."""
    if published:
        rates = " or ".join(dict.fromkeys(f"{one.training['lr']:g}" for one in published))
        before = [
            f"{_title(entry.method)} {error}"
            for entry in published
            if (error := entry.statistic("average_before_push")).size
        ]
        note = f"Published settings are not tuned; their learning rate is {rates}."
        if before:
            note += f" Errors before the push of the last task, in %: {', '.join(before)}."
        yield note


def ranks(results: Path, names: list[str]) -> Shown:
    """The best replay-free method of each measured stream, and where DCO-KRON is."""
    rows, behind = [], []
    streams = measured_streams(results)
    for stream, measured in streams.items():
        place, difference = NONE, NONE
        free = [entry for entry in measured.entries.values() if not entry.mark]
        if not free:  # a bound alone
            continue
        kron = measured.entries.get(_KRON)
        if kron and len(free) > 1:
            place = f"{1 + free.index(kron)} of {len(free)}"
            rival = free[0] if free[0] is not kron else free[1]
            paired = kron.paired(rival, "average")
            difference = f"{paired.written('+')} ({_title(rival.method)})"
            behind.append(paired.mean if rival is free[0] else 0.0)
        rows.append(
            {
                "stream": STREAMS[stream].title,
                "best replay-free method": _title(free[0].method),
                "its error %": str(free[0].statistic("average")),
                "DCO-KRON's place": place,
                "DCO-KRON's error less the best other's": difference,
            }
        )
    note = ""
    if behind:
        wins = sum(row["best replay-free method"] == _title(_KRON) for row in rows)
        note = f"DCO-KRON is first on {wins} of {len(behind)} measured streams"
        if wins < len(behind):
            note += f", and at most {number(max(behind))} points from the first"
        note += ". "
    return Shown(rows, (note + _missing(streams)).rstrip())


def _missing(streams: Collection[str]) -> str:
    """Which streams are not measured yet, in words; nothing if all are."""
    missing = [one.title for name, one in STREAMS.items() if name not in streams]
    if not streams:
        return "No stream is measured yet."
    return f"Not measured yet: {'; '.join(missing)}." if missing else ""


def figure(results: Path, names: list[str]) -> Shown:
    """The figure of all streams on the page, if there is one yet."""
    shown = "![Average error against training time, by stream](figures/comparison.svg)"
    return Shown([], shown if measured_streams(results) else _missing({}))


def panels(results: Path, names: list[str]) -> Shown:
    """Figures of one kind on the page, one per measured stream.

    :param names: the kind, one of :data:`PANELS`.
    """
    (kind,) = names
    if kind not in PANELS:
        raise DCOError(f"there are no panels '{kind}'; there are {', '.join(PANELS)}.")
    shown = [
        f":::{{container}} panel\n**{STREAMS[stream].title}**\n\n"
        f"![{PANELS[kind].title}, {STREAMS[stream].title}](figures/{_name(kind, stream)}.svg)\n:::"
        for stream in measured_streams(results)
    ]
    grid = "\n".join(["::::{container} panels", *shown, "::::"])
    return Shown([], grid if shown else _missing({}))


def figures(results: Path) -> dict[str, str]:
    """All figures of the page as SVG, by the names of their files; none if nothing was measured."""
    streams = measured_streams(results)
    drawn = {"comparison": _cost_svg(streams)} if streams else {}
    ours_first = sorted(_ROWS, key=lambda name: not _ROWS[name].title.startswith("**"))
    for stream, measured in streams.items():
        entries = [  # in one order, so that a method has one colour on all streams
            replace(measured.entries[name], label=_label(name))
            for name in ours_first
            if name in measured.entries
        ]
        compared = Comparison(STREAMS[stream].title, "", TEST, {}, {}, entries)
        for kind, panel in PANELS.items():
            picture = panel.draw(compared, _name(kind, stream))
            assert picture is not None  # every run records its matrix
            drawn[picture.name] = overview.described(picture.svg, _table(measured))
    return {f"{name}.svg": svg for name, svg in drawn.items()}


def _name(kind: str, stream: str) -> str:
    return f"comparison-{kind}-{stream}"


def _cost_svg(streams: Mapping[str, Measured]) -> str:
    """Average error against training time, one panel per stream."""
    columns = min(2, len(streams))
    lines = math.ceil(len(streams) / columns)
    with mpl.rc_context(RC):
        drawing = Figure(figsize=(1 + 2.4 * columns, 1.2 + 2.6 * lines), layout="constrained")
        places = list(drawing.subplots(lines, columns, squeeze=False).flat)
        drawn: dict[str, Any] = {}
        for axes, (stream, measured) in zip(places, streams.items(), strict=False):
            points = {name: measured.point(name) for name in measured.entries}
            for name, point in points.items():
                drawn[name] = overview.draw(axes, _ROWS[name], *point)
            compared = [points[name] for name, one in measured.entries.items() if not one.mark]
            overview.finish_panel(axes, STREAMS[stream].title, compared)
        for axes in places[::columns]:
            axes.set_ylabel("average error (%)")
        for axes in places[len(streams) - columns : len(streams)]:
            axes.set_xlabel("training time / Naive's")
        for axes in places[len(streams) :]:
            axes.remove()
        legend = {_title(name): drawn[name] for name in _ROWS if name in drawn}
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": 2 * columns}
        drawing.legend(legend.values(), legend.keys(), **where)
        svg = svg_text(drawing)
    return overview.described(svg, *map(_table, streams.values()))


def _title(method: str) -> str:
    return _ROWS[method].title.strip("*")


def _label(method: str) -> str:
    """What a figure calls a method; that joint training is a bound, its level shows."""
    return _title(method).removesuffix(" (bound)")
