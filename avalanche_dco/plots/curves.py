"""Errors and capacity against the number of trainings, and bars of final errors."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from avalanche_dco.plots.style import (
    MOST_BESIDE,
    ONE_RUN,
    PALETTE,
    WIDTH,
    add_legend,
    columns,
    latest,
    look_of,
    new_figure,
    select,
    start_at_zero,
    text_colour,
)

FREE_DIRECTIONS = "DCO_FreeDirections"
MOST_SHADED = 6
"""The most methods whose standard deviations are shaded in one figure."""


def plot_average_error(
    frame: pd.DataFrame, *, stream: str = "test", width: float = WIDTH
) -> Figure:
    """Average error against the number of trainings, one line per method.

    A method that trained once (joint training) is drawn as a horizontal line, the bound for the
    others. The standard deviation over seeds is shaded, unless there are too many methods.

    >>> import pandas as pd
    >>> from avalanche_dco.plots import plot_average_error
    >>> frame = pd.DataFrame({"method": ["Naive", "Naive", "DCO-KRON", "DCO-KRON"]})
    >>> frame = frame.assign(metric="AverageError", stream="test", trained=[1, 2, 1, 2])
    >>> plot_average_error(frame.assign(value=[0.1, 0.4, 0.1, 0.12])).savefig("average.png")

    :param frame: metrics with ``AverageError`` in them.
    :param stream: the evaluated stream.
    :param width: of the figure, in inches.
    """
    rows = select(frame, "AverageError", stream)
    shaded = rows["method"].nunique() <= MOST_SHADED
    figure, axes = new_figure(width)
    last = latest(rows, ["method", "seed", "trained"])
    longest = last["trained"].max()
    for index, (method, runs) in enumerate(last.groupby("method", sort=False)):
        style = look_of(index)
        percent = 100 * runs.groupby("trained")["value"].agg(["mean", "std"]).fillna(0.0)
        if len(percent) == 1 and longest > 1:
            level = percent["mean"].iloc[0]
            axes.axhline(level, color=style["color"], linestyle="--", label=f"{method} (once)")
            continue
        axes.plot(percent.index, percent["mean"], label=method, **style)
        if shaded:
            low, high = percent["mean"] - percent["std"], percent["mean"] + percent["std"]
            band: dict[str, Any] = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            axes.fill_between(percent.index, low, high, **band)
    axes.set(xlabel="Experiences trained", ylabel="Average error (%)")
    start_at_zero(axes)
    if longest == 1:
        axes.set_xlim(0.5, 1.5)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if last["method"].iloc[0] != ONE_RUN:
        add_legend(axes)
    return figure


def plot_capacity(frame: pd.DataFrame) -> Figure:
    """How full the network is: the gradients' share in the prohibited directions, and memory.

    Above, the share of the energy of a task's gradients that lies in the span of the directions
    collected so far, at the start (hollow) and the end (filled) of its training; 1 means no room
    is left. Below, the memory that the directions take.

    >>> import pandas as pd
    >>> from avalanche_dco.plots import plot_capacity
    >>> metrics = ["CapacityStart", "CapacityEnd", "DirectionMemory"]
    >>> frame = pd.DataFrame({"metric": 2 * metrics, "trained": [1, 1, 1, 2, 2, 2]})
    >>> frame = frame.assign(stream="train", value=[0, 0, 1e6, 0.2, 0.3, 1e6])
    >>> plot_capacity(frame).savefig("capacity.png")

    :param frame: metrics with ``CapacityStart``, ``CapacityEnd`` and ``DirectionMemory`` in them.
    """
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    share, memory = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for metric, axes, scale, when, look in (
        ("CapacityStart", share, 1.0, "start", {"linestyle": "--", "markerfacecolor": "white"}),
        ("CapacityEnd", share, 1.0, "end", {}),
        ("DirectionMemory", memory, 2.0**-20, "", {}),
    ):
        last = latest(select(frame, metric, None), ["method", "seed", "trained"])
        for index, (method, runs) in enumerate(last.groupby("method", sort=False)):
            mean = scale * runs.groupby("trained")["value"].mean()
            label = when if method == ONE_RUN else f"{method}, {when}"
            axes.plot(mean.index, mean, label=label, **(look_of(index) | look))
    share.set_ylabel("Share of gradient energy in\nprohibited directions")
    share.set_ylim(-0.03, 1.03)
    share.legend(frameon=False, fontsize=9)
    memory.set(xlabel="Experiences trained", ylabel="Memory (MiB)")
    memory.set_ylim(bottom=0)
    for axes in (share, memory):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def plot_free_directions(frame: pd.DataFrame) -> Figure:
    """The share of each layer's directions that is still free, against the number of trainings.

    One line per layer, means over seeds; 1 means that the layer may move freely, 0 that it is full.

    >>> import pandas as pd
    >>> from avalanche_dco.plots import plot_free_directions
    >>> frame = pd.DataFrame({"trained": [1, 2, 3], "value": [0.95, 0.9, 0.87]})
    >>> frame = frame.assign(metric="DCO_FreeDirections/0.weight", stream="train")
    >>> plot_free_directions(frame).savefig("free.png")

    :param frame: metrics of one method with ``DCO_FreeDirections/LAYER`` in them, which
        :class:`.DCOKronPlugin` emits.
    """
    layers = [m for m in frame["metric"].unique() if m.startswith(f"{FREE_DIRECTIONS}/")]
    figure, axes = new_figure(WIDTH)
    for index, metric in enumerate(layers or [FREE_DIRECTIONS]):  # raises if there is none
        last = latest(select(frame, metric, None), ["seed", "trained"])
        mean = last.groupby("trained")["value"].mean()
        label = metric.removeprefix(f"{FREE_DIRECTIONS}/")
        axes.plot(mean.index, mean, label=label, **look_of(index))
    axes.set(xlabel="Experiences trained", ylabel="Share of free directions")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_legend(axes)
    return figure


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
