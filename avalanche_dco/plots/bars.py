"""Bars of FWI and BWT error."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from avalanche_dco.plots.style import (
    MOST_BESIDE,
    PALETTE,
    WIDTH,
    columns,
    latest,
    new_figure,
    select,
    text_colour,
)


def plot_fwi_bwt(frame: pd.DataFrame, *, stream: str = "test", width: float = WIDTH) -> Figure:
    """Final FWI and BWT error side by side, one pair of bars per method.

    The bars are horizontal where the methods' names would not fit beside each other.

    >>> import pandas as pd
    >>> from avalanche_dco.plots import plot_fwi_bwt
    >>> frame = pd.DataFrame({"metric": ["FWIError", "BWTError"], "value": [0.1, 0.3]})
    >>> plot_fwi_bwt(frame.assign(stream="test", trained=2)).savefig("fwi_bwt.png")

    :param frame: metrics with ``FWIError`` and ``BWTError`` in them.
    :param stream: the evaluated stream.
    :param width: of the figure, in inches.
    """
    figure, axes = new_figure(width)
    names = list(select(frame, "FWIError", stream)["method"].unique())
    horizontal = len(names) > MOST_BESIDE or columns(names, width) < len(names)
    draw, spread = (axes.barh, "xerr") if horizontal else (axes.bar, "yerr")
    methods: list[str] = []
    thickness = 0.38
    for offset, (metric, label, colour, hatch) in enumerate(
        (
            ("FWIError", "FWI (learning)", PALETTE[0], ""),
            ("BWTError", "BWT (forgetting)", PALETTE[4], "//"),
        )
    ):
        final = latest(select(frame, metric, stream), ["method", "seed"])
        methods = methods or list(final["method"].unique())
        percent = 100 * final.groupby("method", sort=False)["value"].agg(["mean", "std"])
        percent = percent.reindex(methods)
        error: dict[str, Any] = {spread: percent["std"] if percent["std"].notna().any() else None}
        bars = draw(
            np.arange(len(methods)) + (offset - 0.5) * thickness,
            percent["mean"],
            thickness,
            **error,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            error_kw={"elinewidth": 1, "capsize": 3, "ecolor": text_colour()},
        )
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=9)
    axes.grid(axis="x" if horizontal else "y", alpha=0.3)
    axes.set_axisbelow(True)
    room = max(0.6, (3 - len(methods)) / 2 + 0.6)  # one method alone does not fill the width
    ends = (-room, len(methods) - 1 + room)
    if horizontal:
        axes.axvline(0, color=text_colour(), linewidth=0.8)
        axes.set_yticks(np.arange(len(methods)), methods)
        axes.set(xlabel="Final error (%)", ylabel="Method", ylim=ends[::-1])
        axes.margins(x=0.18)
        lines = max(method.count("\n") + 1 for method in methods)
        figure.set_figheight(max(4.0, 1.2 + max(0.34, 0.17 * lines) * len(methods)))
    else:
        axes.axhline(0, color=text_colour(), linewidth=0.8)
        axes.set_xticks(np.arange(len(methods)), methods)
        axes.set(ylabel="Final error (%)", xlim=ends)
        axes.margins(y=0.12)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure
