"""What the figures share: rows of a frame, colours, legends."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from avalanche_dco.errors import SettingError

PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip
WIDTH = 6.4
"""Of a figure, in inches."""
MOST_BESIDE = 4
"""The most methods that have their legend inside the axes, or their bars upright."""
ONE_RUN = ""
"""The method's name where there is only one run."""
_BLACK = "#000000"
_MARKERS = "osD^vPX*"
_POINTS_PER_CHARACTER = 6


def select(
    frame: pd.DataFrame, metric: str, stream: str | None, *further_columns: str
) -> pd.DataFrame:
    """The rows of one metric, with method and seed filled in."""
    missing = {"metric", "stream", "value", "trained", *further_columns} - set(frame.columns)
    if missing:
        raise SettingError(
            f"The frame has no columns {sorted(missing)}: pass PandasLogger's to_frame() or "
            f"read_log(path), concatenated if there are several."
        )
    rows = frame[frame["metric"] == metric]
    if stream is not None:
        rows = rows[rows["stream"] == stream]
    if rows.empty:
        where = "" if stream is None else f" of the {stream} stream"
        raise SettingError(
            f"The frame has no {metric}{where}; it has {sorted(frame['metric'].unique())}. Give "
            f"the EvaluationPlugin a metric that emits it, error_metrics(matrix=True) for errors."
        )
    return rows.assign(
        method=rows["method"].astype(str) if "method" in rows else ONE_RUN, seed=rows.get("seed", 0)
    )


def latest(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The latest row of each combination of keys, in the frame's order."""
    return rows.drop_duplicates(keys, keep="last")


def new_figure(width: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, so many inches wide."""
    figure = Figure(figsize=(width, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def look_of(index: int) -> dict[str, Any]:
    """Colour and marker of a method; with more methods than colours, the lines change too."""
    turn, place = divmod(index, len(PALETTE))
    return {
        "color": text_colour() if PALETTE[place] == _BLACK else PALETTE[place],
        "marker": _MARKERS[place],
        "linestyle": ("-", ":", "-.")[turn % 3],
        "markersize": 5,
    }


def start_at_zero(axes: Axes) -> None:
    """Start the y axis at zero, with some room above the highest value.

    >>> from matplotlib.figure import Figure
    >>> from avalanche_dco.plots import start_at_zero
    >>> axes = Figure().subplots()
    >>> line = axes.plot([1, 2], [10, 20])
    >>> start_at_zero(axes)
    >>> print("%.1f to %.1f" % axes.get_ylim())
    0.0 to 21.2

    :param axes: the axes with the errors.
    """
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 or 1.0)


def add_legend(axes: Axes) -> None:
    """Add a legend: inside the axes if there is room, otherwise below them, in a taller figure.

    >>> from matplotlib.figure import Figure
    >>> from avalanche_dco.plots import add_legend
    >>> axes = Figure(layout="constrained").subplots()
    >>> line = axes.plot([1, 2], [10, 20], label="Naive")
    >>> add_legend(axes)

    :param axes: the only axes of a figure with constrained layout.
    """
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    beside = columns(labels, figure.get_figwidth())
    if len(labels) <= MOST_BESIDE <= beside:
        axes.legend(frameon=False, fontsize=9)
        return
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-lines // beside))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=beside, frameon=False, fontsize=9
    )


def columns(labels: list[str], width: float) -> int:
    """How many labels fit beside each other in so many inches."""
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    return int(np.clip(72 * width // (_POINTS_PER_CHARACTER * (longest + 4)), 1, 6))


def text_colour() -> Any:
    """The colour that black is drawn in."""
    return rcParams["text.color"]
