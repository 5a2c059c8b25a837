"""The table and the figure at the top of README.md: error against cost on the real streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from avalanche_dco.errors import DCOError
from avalanche_dco.plots import PALETTE
from benchmarks.report.error_tables import Shown
from benchmarks.report.figures import RC, svg_text
from benchmarks.report.settings import key_of
from benchmarks.report.statistics import NONE, number, statistic
from benchmarks.runs.kept import read_study, study_path
from benchmarks.runs.records import Run

STREAMS = {
    "split-mnist": "Split MNIST",
    "permuted-mnist": "Permuted MNIST",
    "mnist-fashion": "MNIST → Fashion",
}
METHODS = {
    "naive": "Naive",
    "ewc": "EWC",
    "si": "SI",
    "rwalk": "RWalk",
    "gpm": "GPM",
    "lwf": "LwF",
    "dco dco-default": "**DCO**",
    "dco": "**DCO (paper's settings)**",
    "dco-comp": "**DCO-COMP**",
    "dco-kron": "**DCO-KRON**",
    "joint": "joint training (bound)",
}
"""Rows: a method, and a study if the row is of that study alone."""
_MARKERS = "oXPds^*pDvH"
_OWN_ROWS = {study for row in METHODS for study in row.split()[1:]}
_OTHERS = "#808890"  # between light and dark: seen on both


class _Choice(NamedTuple):
    settings: dict[str, Any]
    words: str


_DEFAULT = _Choice(
    {"growth": 0.0, "dco_lambda": 100.0, "push_epochs": 0},
    "times from a busier machine than Naive's",
)
_CHOSEN = {
    ("split-mnist", "dco-kron"): _DEFAULT,
    ("permuted-mnist", "dco-kron"): _DEFAULT,
    ("split-mnist", "dco-comp"): _Choice({"couple_layers": False}, "uncoupled layers"),
    ("permuted-mnist", "dco-comp"): _Choice(
        {"couple_layers": False}, "uncoupled layers and a lower learning rate after the first task"
    ),
    ("mnist-fashion", "dco"): _Choice(
        {"gradient_source": "criterion"},
        "a clip of 20, 200 updates and a pulled first task, which are not the authors' settings",
    ),
}
"""Where a study has several settings of a method: those that validation data chose."""


@dataclass(frozen=True)
class Measured:
    """Runs of a method on a stream that differ by their seed only.

    :param study: the study they are from.
    :param naive_seconds: training time of Naive in the same study, or in the first that has it.
    """

    study: str
    runs: Sequence[Run]
    naive_seconds: float

    def mean(self, key: str) -> float:
        """Mean of an outcome."""
        return statistic(run.outcome[key] for run in self.runs).mean


def overview(results: Path, names: list[str]) -> Shown:
    """One row per method: average errors in percent, time against Naive, memory.

    :param names: the studies. The first that has a method on a stream counts.
    """
    rows = []
    for method, title in METHODS.items():
        measured = _measured(results, names, method)
        if measured:
            seconds = sum(one.mean("seconds") for one in measured.values())
            naive = sum(one.naive_seconds for one in measured.values())
            memory = max(one.mean("memory_bytes") for one in measured.values()) / 1e6
            rows.append(
                {
                    "method": title,
                    **{shown: _error(measured.get(of)) for of, shown in STREAMS.items()},
                    "time against Naive": f"{seconds / naive:.1f}",
                    "memory (MB)": number(memory, 1),
                }
            )
    chosen = [
        f"On {STREAMS[stream]} {method} has {one.words}."
        for (stream, method), one in _CHOSEN.items()
    ]
    note = f"Mean ± standard deviation over seeds, where there are several. {' '.join(chosen)}"
    return Shown(rows, note)


def overview_svg(results: Path, names: list[str]) -> str:
    """Average error against training time, one panel per stream, as SVG."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = dict(zip(STREAMS, figure.subplots(1, len(STREAMS)), strict=True))
        drawn: dict[str, Any] = {}
        for (method, title), marker in zip(METHODS.items(), _MARKERS, strict=True):
            ours = title.startswith("**")
            look = {"color": PALETTE[len(drawn) % 6], "s": 70} if ours else {"color": _OTHERS}
            for stream, one in _measured(results, names, method).items():
                point = one.mean("seconds") / one.naive_seconds, one.mean("average")
                drawn[title.strip("*")] = panels[stream].scatter(*point, marker=marker, **look)
        for stream, axes in panels.items():
            axes.set(xscale="log", yscale="log", title=STREAMS[stream])
            axes.set_xlabel("training time / Naive's")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
            axes.margins(x=0.15)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_locator(NullLocator())
        panels["split-mnist"].set_ylabel("average error (%)")
        figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=5)
        svg = svg_text(figure)
    data = "; ".join(" ".join(row.values()) for row in overview(results, names).rows)
    return svg.replace("<style>", f"<desc>{data}</desc><style>", 1)


def _error(measured: Measured | None) -> str:
    return str(statistic(run.outcome["average"] for run in measured.runs)) if measured else NONE


def _measured(results: Path, names: list[str], method: str) -> dict[str, Measured]:
    method, *only = method.split()
    names = only or [name for name in names if name not in _OWN_ROWS]
    found = {}
    for stream in STREAMS:
        for study, runs in _groups(results, names, method, stream):
            naive = dict(_groups(results, [study, *names], "naive", stream))
            seconds = statistic(run.outcome["seconds"] for run in next(iter(naive.values())))
            found[stream] = Measured(study, runs, seconds.mean)
            break
    return found


def _groups(
    results: Path, names: Sequence[str], method: str, stream: str
) -> Iterator[tuple[str, list[Run]]]:
    """The runs of a method on a stream in every study that has any."""
    for study in names:
        runs: dict[str, list[Run]] = {}
        for run in read_study(study_path(study, results)).runs.values():
            chosen = _CHOSEN.get((stream, method), _Choice({}, "")).settings
            wanted = all(run.settings.get(name) == value for name, value in chosen.items())
            if (run.benchmark, run.method) == (stream, method) and wanted:
                runs.setdefault(key_of(run.settings | run.training), []).append(run)
        if len(runs) > 1:
            most = max(map(len, runs.values()))
            runs = {key: group for key, group in runs.items() if len(group) == most}
        if len(runs) > 1:
            raise DCOError(
                f"{study} has {len(runs)} settings of {method} on {stream}; name the one that "
                f"validation data chose in _CHOSEN of {Path(__file__).name}."
            )
        if runs:
            yield study, next(iter(runs.values()))
