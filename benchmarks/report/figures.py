"""The report's figures: those of :mod:`avalanche_dco.plots`, and sweeps, as SVG.

The pictures have no background, and their text and lines take a light colour on dark pages by a
media query of their own; so one file serves both colour schemes, in HTML and beside Markdown.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from avalanche_dco.persistence.files import write_atomically
from avalanche_dco.plots import (
    MOST_SHADED,
    PALETTE,
    add_legend,
    plot_average_error,
    plot_error_matrix,
    plot_fwi_bwt,
    start_at_zero,
)
from benchmarks.report.comparing import Comparison, Entry, Sweep
from benchmarks.report.document import Picture
from benchmarks.report.settings import PROPOSED

_WIDTH = 5.0  # inches: the text is still legible when a phone shows all of it
_LABEL_WIDTH = 26
_INK = "#010203"  # stands for the page's own text colour until the SVG is written
_COLOURS = "svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6e9ee}}"
_FONT = "svg{font-family:'DejaVu Sans',Verdana,sans-serif}"
_NOT_NEEDED = (
    r'<metadata>.*?</metadata>|<!--.*?-->|font-family: [^;"]*; | transform="rotate\(-0 [^"]*"'
    r'|<path d="[^"]*" style="fill: none"/>| (?=")|xmlns:xlink="[^"]*" |xlink:(?=href)'
)
_PLACES = r' (?:d|x|y|transform)="[^"]*"'
RC: dict[Any, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
         ),
        _INK,
    ),
    "grid.color": "#808890",  # between light and dark: seen on both
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    "text.parse_math": False,  # a setting may have a dollar in it
    "svg.fonttype": "none",  # half the size, and text can be searched
    "svg.hashsalt": "report",
}  # fmt: skip


def average_error_picture(comparison: Comparison, name: str) -> Picture | None:
    """Average error against tasks learned; None if no run has a matrix."""
    # The first get the strongest colours and full lines.
    entries = sorted(comparison.entries, key=lambda entry: entry.method not in PROPOSED)
    shaded = len(entries) <= MOST_SHADED
    levels = any(run.trained_once for run in comparison.runs)
    return _picture(
        name,
        f"Average error against tasks learned, {comparison.title}",
        _frame(entries, "AverageError"),
        lambda frame: plot_average_error(frame, width=_WIDTH),
        "Average error on the tasks learned so far, after each task, mean over seeds. "
        + ("Shaded: standard deviation over seeds. " if shaded else "")
        + ("Level: trained once, on all tasks together. " if levels else "")
        + "Lower is better.",
    )


def fwi_bwt_picture(comparison: Comparison, name: str) -> Picture | None:
    """Bars of FWI and BWT error; None if no run has a matrix."""
    return _picture(
        name,
        f"FWI and BWT error, {comparison.title}",
        _frame(comparison.entries, "FWIError"),
        lambda frame: plot_fwi_bwt(frame, width=_WIDTH),
        "Error right after learning (FWI) and its rise until the end (BWT), mean over tasks. "
        "Lines: standard deviation over seeds. Their sum is the final average error. Lower is "
        "better.",
    )


def matrix_pictures(comparison: Comparison, name: str) -> list[Picture]:
    """One heat map per entry that has matrices, means over seeds."""
    pictures = []
    for index, entry in enumerate(comparison.entries):
        picture = _picture(
            f"{name}-{index + 1}",
            f"Error matrix of {entry.label}",
            _frame([entry], "ErrorMatrix"),
            plot_error_matrix,
        )
        pictures += [picture] if picture else []
    return pictures


def sweep_picture(
    title: str,
    name: str,
    sweeps: Sequence[Sweep],
    published: Mapping[str, Mapping[float, float]],
) -> Picture:
    """Average error against a setting's value, one line per sweep.

    :param published: the paper's errors by value, for sweeps that have any, by method.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        for index, sweep in enumerate(sweeps):
            values = [value for value, _ in sweep.points]
            means, spreads, _ = zip(
                *(entry.statistic("average") for _, entry in sweep.points), strict=True
            )
            axes.errorbar(
                values, means, yerr=np.nan_to_num(spreads), label=_drawn(sweep.label),
                color=PALETTE[index % 6], marker="osD^vP"[index % 6], markersize=5, capsize=3,
            )  # fmt: skip
        for index, (method, errors) in enumerate(published.items()):
            axes.plot(
                [*errors], [*errors.values()], label=_drawn(f"{method}, the paper"), color=_INK,
                linestyle="--", marker="x+"[index % 2],
            )  # fmt: skip
        axes.set(xlabel=sweeps[0].setting, ylabel="Average error (%)")
        start_at_zero(axes)
        axes.grid(alpha=0.3)
        add_legend(axes)
        return Picture(name, title, svg_text(figure))


def _picture(
    name: str,
    title: str,
    frame: pd.DataFrame,
    plot: Callable[[pd.DataFrame], Figure],
    caption: str = "",
) -> Picture | None:
    if frame.empty:
        return None
    with mpl.rc_context(RC):
        return Picture(name, title, svg_text(plot(frame)), caption)


def _frame(entries: Sequence[Entry], metric: str) -> pd.DataFrame:
    """The metrics of all runs that recorded this one."""
    frames = [
        run.metrics.assign(method=_drawn(entry.label), seed=run.seed)
        for entry in entries
        for run in entry.runs
        if len(run.values(metric))
    ]
    return pd.concat(frames) if frames else pd.DataFrame()


def _drawn(label: str) -> str:
    """A label in lines that are short enough for a figure."""
    return "\n".join(textwrap.wrap(label, _LABEL_WIDTH))


def save_svg(path: Path, plot: Callable[..., Figure], *data: Any) -> None:
    """Draw a figure and write it.

    :param plot: draws it, from the data.
    """
    with mpl.rc_context(RC | {"text.parse_math": True}):  # the ticks of logarithmic axes
        write_atomically(path, svg_text(plot(*data)))


def svg_text(figure: Figure) -> str:
    """A figure as SVG whose ink takes the page's colour."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return compact(file.getvalue().replace(_INK, "currentColor"), _COLOURS)


def compact(svg: str, style: str = "") -> str:
    """The same picture in half the bytes: each look once, one font, two decimals, no metadata.

    :param svg: what matplotlib has written.
    :param style: rules of CSS for all of it.
    """
    svg = re.sub(_NOT_NEEDED, "", " ".join(svg[svg.index("<svg") :].split()))
    for number, name in enumerate(re.findall(r' id="([^"]*)"', svg)):
        used, short = f"#{name}" in svg, f"i{number}"
        svg = svg.replace(f' id="{name}"', f' id="{short}"' if used else "")
        svg = svg.replace(f"#{name}", f"#{short}")
    svg = re.sub(_PLACES, lambda one: re.sub(r"-?\d+\.\d+", _two_decimals, one[0]), svg)
    svg = _without_plain_groups(svg.replace("> <", "><"))
    style += _FONT
    looks = Counter(re.findall(r' style="([^"]*)"', svg))
    for number, look in enumerate(look for look, count in looks.items() if count > 1):
        svg = svg.replace(f' style="{look}"', f' class="c{number}"')
        style += f".c{number}{{{look}}}"
    return re.sub(r"<svg[^>]*>", rf"\g<0><style>{style}</style>", svg, count=1) + "\n"


def _without_plain_groups(svg: str) -> str:
    """Without groups that have no attributes and so no effect."""
    matters: list[bool] = []

    def tag(found: re.Match[str]) -> str:
        if found[0] != "</g>":
            matters.append(found[0] != "<g>")
            return found[0] if matters[-1] else ""
        return found[0] if matters.pop() else ""

    return re.sub(r"<g(?: [^>]*[^/])?>|</g>", tag, svg)


def _two_decimals(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
