"""Heat maps of error matrices."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from avalanche_dco.errors import SettingError
from avalanche_dco.plots.style import PALETTE, latest, select

_LARGEST_ANNOTATED = 12
_PANELS_ACROSS = 4


def plot_error_matrix(frame: pd.DataFrame, *, stream: str = "test") -> Figure:
    """Heat map of the error of every experience after every training, one panel per method.

    >>> import pandas as pd
    >>> from avalanche_dco.plots import plot_error_matrix
    >>> frame = pd.DataFrame({"trained": [1, 1, 2, 2], "experience": [0, 1, 0, 1]})
    >>> frame = frame.assign(metric="ErrorMatrix", stream="test", value=[0.1, 0.9, 0.3, 0.2])
    >>> plot_error_matrix(frame.assign(training_experience=[0, 0, 1, 1])).savefig("matrix.png")

    :param frame: metrics with ``ErrorMatrix`` in them, from ``error_metrics(matrix=True)``.
    :param stream: the evaluated stream.
    """
    rows = select(frame, "ErrorMatrix", stream, "experience", "training_experience")
    cells = rows[rows["experience"].notna() & (rows["trained"] > 0)]
    if cells.empty:
        raise SettingError(
            f"The frame has no error matrix of the {stream} stream after a training: call "
            f"strategy.eval after strategy.train."
        )
    cells = latest(cells, ["method", "seed", "trained", "experience"])
    methods = list(cells["method"].unique())
    steps, columns = int(cells["trained"].max()), int(cells["experience"].max()) + 1
    figure, panels = _matrix_panels(steps, columns, panels=len(methods))
    for axes, method in zip(panels, methods, strict=True):
        one = cells[cells["method"] == method]
        mean = one.pivot_table(index="trained", columns="experience", values="value")
        matrix = mean.reindex(index=range(1, steps + 1), columns=range(columns)).to_numpy(float)
        own = one.dropna(subset="training_experience")
        learned_at = dict(zip(own["training_experience"], own["trained"] - 1, strict=True))
        _heat_map(axes, matrix, learned_at)
        axes.set_title(method)
    _colour_bar(figure, panels)
    return figure


def draw_error_matrix(matrix: np.ndarray, learned_at: Mapping[int, int]) -> Figure:
    """Heat map of one error matrix.

    >>> import numpy as np
    >>> from avalanche_dco.plots import draw_error_matrix
    >>> figure = draw_error_matrix(np.array([[0.1, 0.9], [0.3, 0.2]]), learned_at={0: 0, 1: 1})
    >>> figure.savefig("matrix.png")

    :param matrix: errors as fractions, a row per training, a column per experience; NaN where
        nothing was evaluated.
    :param learned_at: for each experience, the row right after its training; framed.
    """
    rows, columns = matrix.shape
    figure, panels = _matrix_panels(rows, columns, panels=1)
    _heat_map(panels[0], matrix, learned_at)
    _colour_bar(figure, panels)
    return figure


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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if rows <= 2 * _LARGEST_ANNOTATED:
        names = {row: f" (exp {experience})" for experience, row in learned_at.items()}
        axes.set_yticks(range(rows), [f"{row + 1}{names.get(row, '')}" for row in range(rows)])
    if columns <= 2 * _LARGEST_ANNOTATED:
        axes.set_xticks(range(columns))
    axes.set(xlabel="Evaluated experience", ylabel="After training")


def _colour_bar(figure: Figure, panels: list[Axes]) -> None:
    figure.colorbar(panels[-1].images[0], ax=panels, label="Error (%)")
