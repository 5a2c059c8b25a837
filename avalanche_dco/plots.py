"""Figures from a frame of metrics: of one run, or of several with a ``method`` column.

Every function takes the frame of :class:`.PandasLogger` (or :func:`.read_log`) and returns a new
:class:`matplotlib.figure.Figure`; nothing is shown and pyplot's state is left alone. To compare,
concatenate frames with a ``method`` column, and with a ``seed`` column for repeated runs: means
are drawn, with the standard deviation over seeds.

The colours are those of Okabe and Ito, told apart with any kind of colour vision; markers and
hatching say the same again. Black is drawn in rcParams' text colour, so that figures may be made
for dark pages.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .errors import SettingError

PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#F0E442",
)
_MARKERS = "osD^vPX*"
_LARGEST_ANNOTATED = 12
_PANELS_ACROSS = 4
_ONE_RUN = ""
_BLACK = "#000000"
_MOST_INSIDE = 4
MOST_SHADED = 6
"""The most methods whose standard deviations are shaded in one figure."""
_POINTS_PER_CHARACTER = 6
_WIDTH = 6.4


def plot_average_error(
    frame: pd.DataFrame, *, stream: str = "test", width: float = _WIDTH
) -> Figure:
    """Average error against the number of trainings, one line per method.

    A method that trained once (joint training) is drawn as a level, the bound for the others. The
    standard deviation over seeds is shaded, unless there are so many methods that shades hide them.

    :param frame: metrics with ``AverageError`` in them.
    :param stream: the evaluated stream.
    :param width: of the figure, in inches.
    """
    rows = _select(frame, "AverageError", stream)
    shaded = rows["method"].nunique() <= MOST_SHADED
    figure, axes = _figure(width)
    last = _last(rows, ["method", "seed", "trained"])
    longest = last["trained"].max()
    for index, (method, runs) in enumerate(last.groupby("method", sort=False)):
        style = _style(index)
        percent = 100 * runs.groupby("trained")["value"].agg(["mean", "std"]).fillna(0.0)
        if len(percent) == 1 and longest > 1:
            level = percent["mean"].iloc[0]
            axes.axhline(level, color=style["color"], linestyle="--", label=f"{method} (once)")
            continue
        axes.plot(percent.index, percent["mean"], label=method, **style)
        if shaded:
            axes.fill_between(
                percent.index,
                percent["mean"] - percent["std"],
                percent["mean"] + percent["std"],
                color=style["color"],
                alpha=0.2,
                linewidth=0,
            )
    axes.set(xlabel="Experiences trained", ylabel="Average error (%)")
    start_at_zero(axes)
    if longest == 1:
        axes.set_xlim(0.5, 1.5)
    _finish(axes, last["method"])
    return figure


def plot_fwi_bwt(frame: pd.DataFrame, *, stream: str = "test", width: float = _WIDTH) -> Figure:
    """Final FWI and BWT error side by side, one pair of bars per method.

    The bars lie where the methods' names would not fit beside each other.

    :param frame: metrics with ``FWIError`` and ``BWTError`` in them.
    :param stream: the evaluated stream.
    :param width: of the figure, in inches.
    """
    figure, axes = _figure(width)
    names = list(_select(frame, "FWIError", stream)["method"].unique())
    lying = len(names) > _MOST_INSIDE or _columns(names, width) < len(names)
    draw, spread = (axes.barh, "xerr") if lying else (axes.bar, "yerr")
    methods: list[str] = []
    thickness = 0.38
    for offset, (metric, label, colour, hatch) in enumerate(
        (
            ("FWIError", "FWI (learning)", PALETTE[0], ""),
            ("BWTError", "BWT (forgetting)", PALETTE[4], "//"),
        )
    ):
        final = _last(_select(frame, metric, stream), ["method", "seed"])
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
            error_kw={"elinewidth": 1, "capsize": 3, "ecolor": _ink()},
        )
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=9)
    axes.grid(axis="x" if lying else "y", alpha=0.3)
    axes.set_axisbelow(True)
    room = max(0.6, (3 - len(methods)) / 2 + 0.6)  # one method alone does not fill the width
    ends = (-room, len(methods) - 1 + room)
    if lying:
        axes.axvline(0, color=_ink(), linewidth=0.8)
        axes.set_yticks(np.arange(len(methods)), methods)
        axes.set(xlabel="Final error (%)", ylabel="Method", ylim=ends[::-1])
        axes.margins(x=0.12)
        lines = sum(method.count("\n") + 1 for method in methods)
        figure.set_figheight(max(4.0, 1.2 + 0.34 * len(methods), 1.2 + 0.2 * lines))
    else:
        axes.axhline(0, color=_ink(), linewidth=0.8)
        axes.set_xticks(np.arange(len(methods)), methods)
        axes.set(ylabel="Final error (%)", xlim=ends)
        axes.margins(y=0.12)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def plot_error_matrix(frame: pd.DataFrame, *, stream: str = "test") -> Figure:
    """Heat map of the error of every experience after every training, one panel per method.

    :param frame: metrics with ``ErrorMatrix`` in them, from ``error_metrics(matrix=True)``.
    :param stream: the evaluated stream.
    """
    rows = _select(frame, "ErrorMatrix", stream, "experience", "training_experience")
    cells = rows[rows["experience"].notna() & (rows["trained"] > 0)]
    if cells.empty:
        raise SettingError(
            f"the frame has no error matrix of the {stream} stream after a training: call "
            f"strategy.eval after strategy.train."
        )
    cells = _last(cells, ["method", "seed", "trained", "experience"])
    methods = list(cells["method"].unique())
    steps, columns = int(cells["trained"].max()), int(cells["experience"].max()) + 1
    figure, panels = _matrix_panels(steps, columns, panels=len(methods))
    for axes, method in zip(panels, methods, strict=True):
        one = cells[cells["method"] == method]
        mean = one.groupby(["trained", "experience"])["value"].mean()
        matrix = np.full((steps, columns), np.nan)
        for (trained, experience), error in mean.items():
            matrix[int(trained) - 1, int(experience)] = error
        own = one.dropna(subset="training_experience")
        learned_at = dict(zip(own["training_experience"], own["trained"] - 1, strict=True))
        _heat_map(axes, matrix, learned_at)
        axes.set_title(method)
    _colour_bar(figure, panels)
    return figure


def draw_error_matrix(matrix: np.ndarray, learned_at: Mapping[int, int]) -> Figure:
    """Heat map of one error matrix.

    :param matrix: errors as fractions, a row per training, a column per experience; NaN where
        nothing was evaluated.
    :param learned_at: for each experience, the row right after its training; framed.
    """
    rows, columns = matrix.shape
    figure, panels = _matrix_panels(rows, columns, panels=1)
    _heat_map(panels[0], matrix, learned_at)
    _colour_bar(figure, panels)
    return figure


def plot_capacity(frame: pd.DataFrame) -> Figure:
    """How full the network is: the gradients' share in the prohibited directions, and memory.

    Above, the share of the energy of a task's gradients that lies in the span of the directions
    collected so far, at the start (hollow) and the end (filled) of its training; 1 means no room
    is left. Below, the memory that the directions take.

    :param frame: metrics with ``CapacityStart``, ``CapacityEnd`` and ``DirectionMemory`` in them.
    """
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    share, memory = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    methods = None
    for metric, axes, scale, look in (
        ("CapacityStart", share, 1.0, {"linestyle": "--", "markerfacecolor": "white"}),
        ("CapacityEnd", share, 1.0, {}),
        ("DirectionMemory", memory, 2.0**-20, {}),
    ):
        last = _last(_select(frame, metric, None), ["method", "seed", "trained"])
        methods = last["method"] if methods is None else methods
        for index, (method, runs) in enumerate(last.groupby("method", sort=False)):
            mean = scale * runs.groupby("trained")["value"].mean()
            when = {"CapacityStart": "start", "CapacityEnd": "end"}.get(metric)
            label = ", ".join(part for part in (str(method), when) if part)
            axes.plot(mean.index, mean, label=label, **(_style(index) | look))
    share.set_ylabel("Share of gradient energy in\nprohibited directions")
    share.set_ylim(-0.03, 1.03)
    share.legend(frameon=False, fontsize=9)
    memory.set(xlabel="Experiences trained", ylabel="Memory (MiB)")
    memory.set_ylim(bottom=0)
    for axes in (share, memory):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _select(
    frame: pd.DataFrame, metric: str, stream: str | None, *further_columns: str
) -> pd.DataFrame:
    """The rows of one metric, with method and seed filled in."""
    missing = {"metric", "stream", "value", "trained", *further_columns} - set(frame.columns)
    if missing:
        raise SettingError(
            f"the frame has no columns {sorted(missing)}: pass PandasLogger's to_frame() or "
            f"read_log(path), concatenated if there are several."
        )
    rows = frame[frame["metric"] == metric]
    if stream is not None:
        rows = rows[rows["stream"] == stream]
    if rows.empty:
        where = "" if stream is None else f" of the {stream} stream"
        raise SettingError(
            f"the frame has no {metric}{where}; it has {sorted(frame['metric'].unique())}. Give "
            f"the EvaluationPlugin a metric that emits it, error_metrics(matrix=True) for errors."
        )
    return rows.assign(
        method=rows["method"].astype(str) if "method" in rows else _ONE_RUN,
        seed=rows.get("seed", 0),
    )


def _last(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The latest row of each combination of keys, in the frame's order."""
    return rows.drop_duplicates(keys, keep="last")


def _figure(width: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _style(index: int) -> dict[str, Any]:
    """Colour and marker of a method; with more methods than colours, the lines change too."""
    turn, place = divmod(index, len(PALETTE))
    return {
        "color": _ink() if PALETTE[place] == _BLACK else PALETTE[place],
        "marker": _MARKERS[place],
        "linestyle": ("-", ":", "-.")[turn % 3],
        "markersize": 5,
    }


def _finish(axes: Axes, methods: pd.Series) -> None:
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if methods.iloc[0] != _ONE_RUN:
        add_legend(axes)


def start_at_zero(axes: Axes) -> None:
    """Show errors from zero on, with some room above the highest.

    :param axes: with everything drawn.
    """
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 or 1.0)


def add_legend(axes: Axes) -> None:
    """Explain the lines: inside the axes if there is room, else below, in a higher figure.

    :param axes: the only ones of a figure with constrained layout.
    """
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    beside = _columns(labels, figure.get_figwidth())
    if len(labels) <= _MOST_INSIDE <= beside:
        axes.legend(frameon=False, fontsize=9)
        return
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-lines // beside))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=beside, frameon=False, fontsize=9
    )


def _columns(labels: list[str], width: float) -> int:
    """How many labels fit beside each other in so many inches."""
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    return int(np.clip(72 * width // (_POINTS_PER_CHARACTER * (longest + 4)), 1, 6))


def _ink() -> Any:
    return rcParams["text.color"]


def _matrix_panels(rows: int, columns: int, panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with room for that many heat maps of that size."""
    across = min(panels, _PANELS_ACROSS)
    down = -(-panels // across)
    width = float(np.clip(1.2 + 0.55 * columns, 3.0, 8.0))
    height = float(np.clip(1.2 + 0.45 * rows, 2.6, 8.0))
    figure = Figure(figsize=(width * across + 0.9, height * down), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for empty in grid[panels:]:
        empty.remove()
    return figure, grid[:panels]


def _heat_map(axes: Axes, matrix: np.ndarray, learned_at: Mapping[int, int]) -> None:
    """Draw the matrix in percent; a frame marks each experience's own training."""
    percent = 100 * matrix
    rows, columns = matrix.shape
    axes.set_facecolor("0.9")
    axes.imshow(percent, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for experience, row in learned_at.items():
        corner = (experience - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=2))
    if max(rows, columns) <= _LARGEST_ANNOTATED:
        for (row, column), error in np.ndenumerate(percent):
            text = "–" if np.isnan(error) else f"{error:.1f}"
            dark = np.isfinite(error) and error < 50
            axes.text(
                column, row, text, ha="center", va="center", fontsize=9,
                color="white" if dark else "black",
            )  # fmt: skip
    trained = {row: experience for experience, row in learned_at.items()}
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if rows <= 2 * _LARGEST_ANNOTATED:
        labels = [
            f"{row + 1}" + (f" (exp {trained[row]})" if row in trained else "")
            for row in range(rows)
        ]
        axes.set_yticks(range(rows), labels)
    if columns <= 2 * _LARGEST_ANNOTATED:
        axes.set_xticks(range(columns))
    axes.set(xlabel="Evaluated experience", ylabel="After training")


def _colour_bar(figure: Figure, panels: list[Axes]) -> None:
    figure.colorbar(panels[-1].images[0], ax=panels, label="Error (%)")
