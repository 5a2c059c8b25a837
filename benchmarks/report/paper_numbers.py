"""What the paper prints, as data: Teng et al., Direction-Constrained Optimization.

Only numbers that stand in the paper as text are here. It shows FWI and BWT error (Figure 6) and
the error against theta (Figure 4) as pictures only, so there are none of those.
"""

from collections.abc import Mapping

TABLE_1_SOURCE = "Table 1 of the paper"
TABLE_1: Mapping[str, Mapping[str, float]] = {
    "permuted-mnist": {
        "naive": 17.41,
        "ewc": 7.29,
        "si": 6.38,
        "rwalk": 6.7,
        "gpm": 5.84,
        "dco": 4.68,
        "dco-comp": 4.84,
    },
    "split-mnist": {
        "naive": 9.68,
        "ewc": 2.7,
        "si": 2.29,
        "rwalk": 5.67,
        "gpm": 4.97,
        "dco": 1.46,
        "dco-comp": 1.34,
    },
    "split-cifar100": {
        "naive": 33.13,
        "ewc": 30.23,
        "si": 29.91,
        "rwalk": 29.08,
        "gpm": 32.93,
        "dco": 26.61,
        "dco-comp": 28.22,
    },
}
"""Average error in % after the last task, by benchmark and method; the paper's SGD is ``naive``."""

SWEEPS_SOURCE = "the table in Figure 7 of the paper"
SWEEPS: Mapping[tuple[str, str, str], Mapping[float, float]] = {
    ("permuted-mnist", "dco-comp", "k"): {
        100: 10.81,
        200: 8.83,
        500: 7.04,
        800: 5.14,
        1000: 4.85,
    },
}
"""Average error in % by the setting's value, for (benchmark, method, setting)."""
