"""The table and the figure at the top of README.md: error against cost on the real streams.

The paper's Table 1 beside the same methods, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from avalanche_dco.errors import DCOError
from avalanche_dco.plots import PALETTE
from benchmarks.report import comparison_study
from benchmarks.report.comparing import Entry
from benchmarks.report.error_tables import Shown, deviations, read_entries, seeds_in_words
from benchmarks.report.figures import RC, svg_text
from benchmarks.report.paper_numbers import TABLE_1
from benchmarks.report.settings import key_of
from benchmarks.report.statistics import NONE, number, statistic
from benchmarks.runs.kept import read_measurements, read_study, study_path
from benchmarks.runs.records import Run

STREAMS = {
    name: comparison_study.STREAMS[name].title
    for name in ("split-mnist", "permuted-mnist", "mnist-fashion")
}


class Row(NamedTuple):
    """A method of the table.

    :param title: what the table calls it.
    :param method: its name.
    :param marker: its shape in figures.
    :param preset: the preset that its runs must have; None for any.
    """

    title: str
    method: str
    marker: str = ""
    preset: str | None = None


ROWS = (
    Row("Naive", "naive", "o"),
    Row("EWC", "ewc", "X"),
    Row("SI", "si", "P"),
    Row("RWalk", "rwalk", "d"),
    Row("GPM", "gpm", "s"),
    Row("LwF", "lwf", "^"),
    Row("**DCO**", "dco", "*", "default"),
    Row("**DCO (published settings)**", "dco", "p", "paper"),
    Row("**DCO-COMP**", "dco-comp", "D", "default"),
    Row("**DCO-KRON**", "dco-kron", "v"),
    Row("joint training (bound)", "joint"),
)
_TITLES = {row.method: row.title.strip("*") for row in ROWS if row.preset != "paper"}
_UNPRINTED = ("lwf", "dco-kron", "joint")  # not in the paper, and of interest beside it
_BOUND = "joint"
_WIDE = 30
"""The ratio of an axis' ends from which on it has fewer ticks."""
_OTHERS = "#808890"  # between light and dark: seen on both
_TIMED_ON = "split-mnist"
_NOTE = (
    "Mean ± standard deviation over seeds where there are several. Times are those of whole "
    "trainings on Split MNIST in one command (python -m benchmarks speed), with the plugins' "
    "defaults; memory is what a method keeps between tasks. Published settings are the paper's "
    "and, where it gives none, its authors' code's."
)


def overview(results: Path, names: list[str]) -> Shown:
    """One row per method: average errors in percent, time against Naive, memory.

    :param names: the studies. The first that has a method on a stream counts.
    """
    rows, ratios, note = [], _ratios(results), _NOTE
    for row in ROWS:
        measured = _measured(results, names, row)
        before = _mean(measured.get("mnist-fashion", ()), "average_before_push")
        if row.preset == "paper" and not math.isnan(before):
            note += (
                " Published settings on MNIST → Fashion are shown after the last push; before it, "
                f"where the authors take errors, they have {number(before)} %."
            )
        if measured:
            memory = [_mean(runs, "memory_bytes") / 1e6 for runs in measured.values()]
            rows.append(
                {
                    "method": row.title,
                    **{shown: _error(measured.get(of)) for of, shown in STREAMS.items()},
                    "time against Naive": number(ratios.get(row, math.nan), 1),
                    "memory (MB)": number(max(memory), 1),
                }
            )
    return Shown(rows, note)


def table_1(results: Path, names: list[str]) -> Shown:
    """A stream of the paper's Table 1: the paper, the runs nearest to it, and all tuned alike.

    :param names: the stream and the studies. Of runs that are equally near to the method's preset,
        those of the first study count.
    """
    stream, *studies = names
    printed, near = TABLE_1[stream], dict[str, Entry]()
    entries = [entry for name in studies for entry in read_entries(results, [name])]
    for entry in sorted(entries, key=lambda one: len(deviations(one))):
        if entry.runs[0].benchmark == stream and entry.method in printed:
            near.setdefault(entry.method, entry)
    streams = comparison_study.measured_streams(results)
    tuned = streams[stream].entries if stream in streams else {}
    rows = [
        {
            "method": _TITLES[method],
            "paper %": number(printed.get(method, math.nan)),
            "near its settings %": _average(near.get(method)),
            **({"tuned alike %": _average(tuned.get(method))} if tuned else {}),
        }
        for method in (*printed, *(name for name in _UNPRINTED if name in tuned))
    ]
    note = ""
    if near:
        found = [name for name in printed if name in near]
        note = seeds_in_words([_TITLES[name] for name in found], [near[name] for name in found])
        note = f"Near the paper's settings: {note[0].lower()}{note[1:]}"
    return Shown(rows, note)


def _average(entry: Entry | None) -> str:
    return NONE if entry is None else str(entry.statistic("average"))


def overview_svg(results: Path, names: list[str]) -> str:
    """Average error against training time, one panel per stream, as SVG."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = dict(zip(STREAMS, figure.subplots(1, len(STREAMS)), strict=True))
        drawn: dict[str, Any] = {}
        points: dict[str, list[tuple[float, float]]] = {stream: [] for stream in STREAMS}
        ratios = _ratios(results)
        for row in ROWS:
            for stream, runs in _measured(results, names, row).items():
                error = _mean(runs, "average")
                if row.method == _BOUND or row in ratios:
                    point = ratios.get(row, math.nan), error
                    drawn[row.title.strip("*")] = draw(panels[stream], row, *point)
                    points[stream] += [] if row.method == _BOUND else [point]
        for stream, axes in panels.items():
            finish_panel(axes, STREAMS[stream], points[stream])
            axes.set_xlabel("time on Split MNIST / Naive's")
        panels["split-mnist"].set_ylabel("average error (%)")
        figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=5)
        svg = svg_text(figure)
    return described(svg, overview(results, names))


def described(svg: str, *tables: Shown) -> str:
    """A figure with the rows of tables in words, for those who do not see it."""
    data = "; ".join(" ".join(row.values()) for table in tables for row in table.rows)
    return svg.replace("<style>", f"<desc>{data}</desc><style>", 1)


def draw(axes: Axes, row: Row, ratio: float, error: float) -> Any:
    """A level for the bound, a point for every other method."""
    if row.method == _BOUND:
        return axes.axhline(error, color=_OTHERS, linestyle="--")
    ours = [other for other in ROWS if other.title.startswith("**")]
    look = {"color": PALETTE[ours.index(row)], "s": 70} if row in ours else {"color": _OTHERS}
    return axes.scatter(ratio, error, marker=row.marker, **look)


def finish_panel(axes: Axes, title: str, points: Iterable[tuple[float, float]]) -> None:
    """Draw the front of the points, and scale both axes logarithmically with few ticks.

    :param points: time and error of every method that is no bound.
    """
    front = _front(points)
    if front:
        axes.step(*zip(*front, strict=True), where="post", color=_OTHERS, linewidth=0.8)
    axes.set(xscale="log", yscale="log", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.margins(x=0.15)
    data = axes.dataLim
    for axis, wide in (
        (axes.xaxis, data.x1 > _WIDE * data.x0),
        (axes.yaxis, data.y1 > _WIDE * data.y0),
    ):
        axis.set_major_locator(LogLocator(subs=(1, 3) if wide else (1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both time and error, the fastest first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _ratios(results: Path) -> dict[Row, float]:
    """Times of whole trainings against Naive's, of the rows that have the plugins' defaults."""
    path = study_path("speed", results)
    if not path.exists():
        return {}
    frame, _ = read_measurements(path)
    measured = frame.set_index("case")["ratio"].to_dict()
    cases = {row: f"{_TIMED_ON}: {row.method}" for row in ROWS if row.preset != "paper"}
    return {row: measured[case] for row, case in cases.items() if case in measured}


def _mean(runs: Sequence[Run], key: str) -> float:
    return statistic(run.outcome.get(key, math.nan) for run in runs).mean


def _error(runs: Sequence[Run] | None) -> str:
    return str(statistic(run.outcome["average"] for run in runs)) if runs else NONE


def _measured(results: Path, names: list[str], row: Row) -> dict[str, Sequence[Run]]:
    """The runs of a row by stream, of the first study that has any."""
    found = ((stream, next(_groups(results, names, row, stream), None)) for stream in STREAMS)
    return {stream: runs for stream, runs in found if runs}


def _groups(results: Path, names: Sequence[str], row: Row, stream: str) -> Iterator[list[Run]]:
    """The runs of a row on a stream in every study that has any."""
    for study in names:
        runs: dict[str, list[Run]] = {}
        for run in read_study(study_path(study, results)).runs.values():
            of_row = row.preset in (None, run.preset)
            if (run.benchmark, run.method) == (stream, row.method) and of_row:
                runs.setdefault(key_of(run.settings | run.training), []).append(run)
        if len(runs) > 1:
            most = max(map(len, runs.values()))
            runs = {key: group for key, group in runs.items() if len(group) == most}
        if len(runs) > 1:
            raise DCOError(
                f"{study} has {len(runs)} settings of {row.method} on {stream}, and one row can "
                "show one. Keep those that validation data did not choose in another study."
            )
        if runs:
            yield next(iter(runs.values()))
