"""The figures of Section 3. Ordered quantities get an ordered, colour-blind safe scale."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

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
_DASHED: dict[str, Any] = {"color": "0.35", "linewidth": 1, "linestyle": (0, (4, 3))}
_ALONG = r"step $\beta$ along $v_i$"


def _colours(count: int) -> np.ndarray:
    """Viridis without its palest end, which vanishes on white."""
    return mpl.colormaps["viridis"](np.linspace(0, 0.88, count))


def _observation1(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(6.6, 4.0), layout="constrained")
    axes = figure.subplots()
    groups = table.groupby("index")
    looks = zip(groups, _colours(groups.ngroups), _MARKERS, strict=False)
    for place, ((index, curve), colour, marker) in enumerate(looks):
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.5}
        every, label = (place, 10), f"$v_{{{index}}}$"
        axes.plot(curve["beta"], curve["loss"], label=label, markevery=every, **look)
    axes.set(xlabel=_ALONG, ylabel=r"loss $f(0, \beta, v_i)$", yscale="log")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="eigenvector")
    return figure


def _observation2(table: pd.DataFrame, origin: float) -> Figure:
    figure, panels = _panels(2, 4.65, 4.0)
    groups = table.groupby("sigma")
    for axes, below in zip(panels, (0.0, origin), strict=True):
        looks = zip(groups, _colours(groups.ngroups), _MARKERS, strict=False)
        for (sigma, curve), colour, marker in looks:
            axes.errorbar(
                curve["s"],
                curve["h"] - below,
                yerr=2 * curve["standard_error"],
                color=colour,
                label=rf"$\sigma = {sigma:g}$",
                marker=marker,
                markersize=4.5,
                capsize=2,
                elinewidth=1,
            )
        axes.set(yscale="log", xlabel="last index $s$ of the 50 eigenvectors in $V_s$")
        axes.set_xticks(table["s"].unique())
    panels[0].set_ylabel(r"expected loss $h(\sigma, V_s)$")
    panels[1].set_ylabel(r"expected rise $h(\sigma, V_s) - L(x^*)$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center")
    return figure


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def _observation3(table: pd.DataFrame, level: float) -> Figure:
    groups = table.groupby("index")
    figure, panels = _panels(groups.ngroups, 3.1, 3.7)
    alphas = np.sort(table["alpha"].unique())
    for axes, (index, section) in zip(panels, groups, strict=True):
        for alpha, colour in zip(alphas, _colours(len(alphas)), strict=True):
            curve = section[section["alpha"] == alpha]
            axes.plot(curve["beta"], curve["loss"], color=colour, label=rf"$\alpha = {alpha:.3g}$")
        axes.axhline(level, **_DASHED)
        axes.set(ylim=(0, 2.5 * level), title=f"$v_{{{index}}}$", xlabel=_ALONG)
    panels[0].set_ylabel(r"loss $f(\alpha, \beta, v_i)$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(alphas))
    return figure


def _cone(table: pd.DataFrame) -> Figure:
    groups = table.groupby("index")
    figure, panels = _panels(groups.ngroups, 3.1, 3.4)
    wall, inside = _colours(2)
    for axes, (index, section) in zip(panels, groups, strict=True):
        ways = section[["beta_minus", "beta_plus"]].to_numpy()
        walls = np.where(np.isfinite(ways), ways, np.nan)
        # An open side is shaded to the edge of the picture and has no wall.
        edge = 1.5 * np.nanmax(walls, initial=1e-9)
        left, right = np.where(np.isfinite(ways), ways, edge).T
        axes.fill_betweenx(section["alpha"], -left, right, color=inside, alpha=0.3, linewidth=0)
        axes.plot(walls * [-1, 1], section["alpha"], color=wall)
        axes.axvline(0, **_DASHED)
        axes.set(title=f"$v_{{{index}}}$", xlabel=_ALONG)
    panels[0].set_ylabel(r"step $\alpha$ along $-\bar g$")
    return figure


def draw(tables: dict[str, pd.DataFrame], title: str, prefix: str, folder: Path) -> list[Path]:
    """Draw every figure and return the files, PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    cone = tables["cone"]
    origin, level = float(tables["axis"]["loss"].iloc[0]), float(cone["level"].iloc[0])
    section = within(tables["observation3"], cone, 1.5)
    paths = []
    with mpl.rc_context(_STYLE):
        for name, figure, caption in (
            (
                "observation1",
                _observation1(tables["observation1"]),
                "the loss along eigenvectors of $G G^T$",
            ),
            (
                "observation2",
                _observation2(tables["observation2"], origin),
                "the loss in subspaces of 50 eigenvectors (bars: two standard errors)",
            ),
            (
                "observation3",
                _observation3(section, level),
                r"the loss flattens as $\alpha$ grows (dashed: twice the loss at $x^*$)",
            ),
            ("cone", _cone(cone), "where the loss stays below twice that at $x^*$ (scales differ)"),
        ):
            figure.suptitle(f"{title}: {caption}")
            paths.append(folder / f"{prefix}-{name}.png")
            _save(figure, paths[-1])
    return paths


def _save(figure: Figure, path: Path) -> None:
    """Write a figure with a palette, which takes a third of the bytes; as SVG it takes more."""
    file = io.BytesIO()
    figure.savefig(file, dpi=110)
    picture = Image.open(file).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    picture.save(path, "PNG", optimize=True)
