"""Tables and figures of the capacity meter, from the frames of its runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from avalanche_dco.plots import plot_capacity
from avalanche_dco.plots.style import WIDTH, look_of, new_figure

_BANDS = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01]
_NAMES = {"dco": "DCO", "naive": "Naive"}


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
    new = "metric == 'ErrorMatrix' and experience == training_experience"

    def values(query: str) -> pd.Series:
        return frame.query(query).set_index(["seed", "trained"])["value"]

    start = values("method == 'dco' and metric == 'CapacityStart' and trained > 1")
    cost = 100 * (values(f"method == 'dco' and {new}") - values(f"method == 'naive' and {new}"))
    cost = cost.reindex(start.index)
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
    figure, axes = new_figure(WIDTH)
    for method, rows in summary(frame).groupby(level="method", sort=False):
        one = rows.droplevel("method")
        name, look = _NAMES[str(method)], look_of(list(_NAMES).index(str(method)))
        hollow = look | {"linestyle": "--", "mfc": "white"}
        axes.plot(one.index, one["new"], label=f"{name}, new task", **look)
        axes.plot(one.index, one["average"], label=f"{name}, all tasks so far", **hollow)
    axes.set(xlabel="Experiences trained", ylabel="Test error (%)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
