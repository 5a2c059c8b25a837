"""Figures from a frame of metrics: of one run, or of several with a ``method`` column.

Every function takes the frame of :class:`.PandasLogger` (or :func:`.read_log`) and returns a new
:class:`matplotlib.figure.Figure`; nothing is shown, and pyplot's state does not change. To compare,
concatenate frames with a ``method`` column, and with a ``seed`` column for repeated runs: means
are drawn, with the standard deviation over seeds.

The colours are those of Okabe and Ito, which are distinct with any kind of colour vision; markers
and hatching repeat them. Black is drawn in rcParams' text colour, so that figures also suit dark
pages.
"""

from avalanche_dco.plots.curves import (
    MOST_SHADED,
    plot_average_error,
    plot_capacity,
    plot_free_directions,
    plot_fwi_bwt,
)
from avalanche_dco.plots.heat_maps import draw_error_matrix, plot_error_matrix
from avalanche_dco.plots.style import PALETTE, add_legend, start_at_zero

__all__ = [
    "MOST_SHADED",
    "PALETTE",
    "add_legend",
    "draw_error_matrix",
    "plot_average_error",
    "plot_capacity",
    "plot_error_matrix",
    "plot_free_directions",
    "plot_fwi_bwt",
    "start_at_zero",
]
