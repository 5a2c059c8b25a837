"""Tables and figures of the capacity meter, from the frames of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from avalanche_dco.plots import PALETTE, plot_capacity

_BANDS = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01]
_NAMES = {"dco": "DCO", "naive": "Naive"}
_LOOKS: dict[tuple[str, str], dict[str, Any]] = {
    ("dco", "new"): {"color": PALETTE[0], "marker": "o"},
    ("naive", "new"): {"color": PALETTE[1], "marker": "s"},
    ("dco", "average"): {"color": PALETTE[0], "marker": "o", "linestyle": "--", "mfc": "white"},
    ("naive", "average"): {"color": PALETTE[1], "marker": "s", "linestyle": "--", "mfc": "white"},
}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """What each experience did to the meter and to the errors, means over seeds.

    :param frame: metrics of one or several runs, with the columns ``method`` and ``seed``.
    :return: by method and number of experiences trained: the shares at start and end, memory in
        MiB, the error on the new experience, the average error so far and the BWT error, in %.
    """

    def mean(metric: str, scale: float, own: bool = False) -> pd.Series:
        rows = frame[frame["metric"] == metric]
        if own:
            rows = rows[rows["experience"] == rows["training_experience"]]
        return scale * rows.groupby(["method", "trained"], sort=False)["value"].mean()

    return pd.DataFrame(
        {
            "start": mean("CapacityStart", 1),
            "end": mean("CapacityEnd", 1),
            "MiB": mean("DirectionMemory", 2**-20),
            "new": mean("ErrorMatrix", 100, own=True),
            "average": mean("AverageError", 100),
            "BWT": mean("BWTError", 100),
        }
    )


def cost_by_share(frame: pd.DataFrame) -> pd.DataFrame:
    """What a share at the start announces: how much worse than by Naive the task is learned.

    Every experience but the first is compared with the same experience of the same seed.

    :param frame: as in :func:`summary`, of DCO and Naive.
    :return: by band of ``CapacityStart``: the number of experiences, and DCO's error on the new
        experience, right after its training, minus Naive's, in %: mean, least and most.
    """
    keys = ["seed", "trained"]

    def own_error(method: str) -> pd.Series:
        rows = frame[frame["method"] == method]
        own = (rows["metric"] == "ErrorMatrix") & (
            rows["experience"] == rows["training_experience"]
        )
        return 100 * rows[own].set_index(keys)["value"]

    shares = frame.query("method == 'dco' and metric == 'CapacityStart' and trained > 1")
    start = shares.set_index(keys)["value"]
    cost = (own_error("dco") - own_error("naive")).reindex(start.index)
    bands = pd.cut(start, _BANDS, right=False)
    return cost.groupby(bands, observed=True).agg(["count", "mean", "min", "max"])


def draw(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """Draw the meter and the errors into ``folder``.

    :param frame: as in :func:`summary`.
    :param folder: made if it does not exist.
    :param name: how the files' names begin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    measured = frame[frame["method"] == "dco"].assign(method=_NAMES["dco"])
    plot_capacity(measured).savefig(folder / f"{name}-capacity.png", dpi=120)
    plot_errors(frame).savefig(folder / f"{name}-errors.png", dpi=120)


def plot_errors(frame: pd.DataFrame) -> Figure:
    """Error of each new experience right after its training, and average error so far."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    table = summary(frame)
    for method, rows in table.groupby(level="method", sort=False):
        one = rows.droplevel("method")
        for column, meaning in (("new", "new task"), ("average", "all tasks so far")):
            look = {"markersize": 5} | _LOOKS[str(method), column]
            label = f"{_NAMES[str(method)]}, {meaning}"
            axes.plot(one.index, one[column], label=label, **look)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="Experiences trained", ylabel="Test error (%)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
