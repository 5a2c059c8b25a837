"""The figures of Section 3. Ordered quantities get an ordered, colour-blind safe scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.studies.landscape.observations import within

_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}
_MARKERS = "osD^vP*X<"


def _colours(count: int) -> np.ndarray:
    """Viridis without its palest end, which vanishes on white."""
    return mpl.colormaps["viridis"](np.linspace(0, 0.88, count))


def _observation1(axes: Axes, table: pd.DataFrame) -> None:
    groups = list(table.groupby("index"))
    for place, ((index, curve), colour) in enumerate(
        zip(groups, _colours(len(groups)), strict=True)
    ):
        axes.plot(
            curve["beta"],
            curve["loss"],
            color=colour,
            label=f"$v_{{{index}}}$",
            marker=_MARKERS[place % len(_MARKERS)],
            markevery=(place, 10),
            markersize=4.5,
        )
    axes.set_yscale("log")
    axes.set_xlabel(r"step $\beta$ along $v_i$")
    axes.set_ylabel(r"loss $f(0, \beta, v_i)$")
    axes.legend(ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5), title="eigenvector")


def _observation2(table: pd.DataFrame, origin: float) -> Figure:
    figure = Figure(figsize=(9.3, 4.0), layout="constrained")
    panels = list(figure.subplots(1, 2))
    groups = list(table.groupby("sigma"))
    for axes, below in zip(panels, (0.0, origin), strict=True):
        for place, ((sigma, curve), colour) in enumerate(
            zip(groups, _colours(len(groups)), strict=True)
        ):
            axes.errorbar(
                curve["s"],
                curve["h"] - below,
                yerr=2 * curve["standard_error"],
                color=colour,
                label=rf"$\sigma = {sigma:g}$",
                marker=_MARKERS[place],
                markersize=4.5,
                capsize=2,
                elinewidth=1,
            )
        axes.set_yscale("log")
        axes.set_xticks(table["s"].unique())
        axes.set_xlabel("last index $s$ of the 50 eigenvectors in $V_s$")
    panels[0].set_ylabel(r"expected loss $h(\sigma, V_s)$")
    panels[1].set_ylabel(r"expected rise $h(\sigma, V_s) - L(x^*)$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center")
    return figure


def _panels(count: int, height: float) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(3.1 * count, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)))


def _observation3(table: pd.DataFrame, level: float) -> Figure:
    groups = list(table.groupby("index"))
    figure, panels = _panels(len(groups), 3.7)
    alphas = np.sort(table["alpha"].unique())
    for axes, (index, section) in zip(panels, groups, strict=True):
        for alpha, colour in zip(alphas, _colours(len(alphas)), strict=True):
            curve = section[section["alpha"] == alpha]
            axes.plot(curve["beta"], curve["loss"], color=colour, label=rf"$\alpha = {alpha:.3g}$")
        axes.axhline(level, color="0.35", linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(0, 2.5 * level)
        axes.set_title(f"$v_{{{index}}}$")
        axes.set_xlabel(r"step $\beta$ along $v_i$")
    panels[0].set_ylabel(r"loss $f(\alpha, \beta, v_i)$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(alphas))
    return figure


def _cone(table: pd.DataFrame) -> Figure:
    groups = list(table.groupby("index"))
    figure, panels = _panels(len(groups), 3.4)
    inside, wall = _colours(2)[1], _colours(2)[0]
    for axes, (index, section) in zip(panels, groups, strict=True):
        ways = section[["beta_minus", "beta_plus"]].to_numpy()
        walls = np.where(np.isfinite(ways), ways, np.nan)
        # An open side is shaded to the edge of the picture and has no wall.
        edge = 1.5 * np.nanmax(walls, initial=1e-9)
        shade = np.where(np.isfinite(ways), ways, edge)
        axes.fill_betweenx(
            section["alpha"], -shade[:, 0], shade[:, 1], color=inside, alpha=0.3, linewidth=0
        )
        axes.plot(-walls[:, 0], section["alpha"], color=wall)
        axes.plot(walls[:, 1], section["alpha"], color=wall)
        axes.axvline(0, color="0.35", linewidth=1, linestyle=(0, (4, 3)))
        axes.set_title(f"$v_{{{index}}}$")
        axes.set_xlabel(r"step $\beta$ along $v_i$")
    panels[0].set_ylabel(r"step $\alpha$ along $-\bar g$")
    return figure


def draw(tables: dict[str, pd.DataFrame], title: str, prefix: str, folder: Path) -> list[Path]:
    """Draw every figure and return the files, PNG.

    :param tables: the tables by name.
    :param title: the data, as the figures name it.
    :param prefix: how the files' names begin.
    :param folder: where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        line = Figure(figsize=(6.6, 4.0), layout="constrained")
        _observation1(line.subplots(), tables["observation1"])
        line.suptitle(f"{title}: the loss along eigenvectors of $G G^T$")
        origin = float(tables["axis"]["loss"].iloc[0])
        pictures = {
            "observation1": line,
            "observation2": _observation2(tables["observation2"], origin),
        }
        pictures["observation2"].suptitle(
            f"{title}: the loss in subspaces of 50 eigenvectors (bars: two standard errors)"
        )
        level = float(tables["cone"]["level"].iloc[0])
        pictures["observation3"] = _observation3(
            within(tables["observation3"], tables["cone"], 1.5), level
        )
        pictures["observation3"].suptitle(
            rf"{title}: the loss flattens as $\alpha$ grows (dashed: twice the loss at $x^*$)"
        )
        pictures["cone"] = _cone(tables["cone"])
        pictures["cone"].suptitle(
            f"{title}: where the loss stays below twice that at $x^*$ (scales differ)"
        )
        paths = []
        for name, figure in pictures.items():
            path = folder / f"{prefix}-{name}.png"
            figure.savefig(path, dpi=110)
            paths.append(path)
    return paths
