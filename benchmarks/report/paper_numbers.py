"""What the paper prints, as data: Teng et al., Direction-Constrained Optimization.

Only numbers that stand in the paper as text are here. It shows FWI and BWT error (Figure 6) and
the error against theta (Figure 4) as pictures only, so there are none of those.
"""

from collections.abc import Mapping

TABLE_1_SOURCE = "Table 1 of the paper"
_METHODS = ("naive", "ewc", "si", "rwalk", "gpm", "dco", "dco-comp")
TABLE_1: Mapping[str, Mapping[str, float]] = {
    benchmark: dict(zip(_METHODS, errors, strict=True))
    for benchmark, errors in {
        "permuted-mnist": (17.41, 7.29, 6.38, 6.7, 5.84, 4.68, 4.84),
        "split-mnist": (9.68, 2.7, 2.29, 5.67, 4.97, 1.46, 1.34),
        "split-cifar100": (33.13, 30.23, 29.91, 29.08, 32.93, 26.61, 28.22),
    }.items()
}
"""Average error in % after the last task, by benchmark and method; the paper's SGD is ``naive``."""

SWEEPS_SOURCE = "the table in Figure 7 of the paper"
SWEEPS: Mapping[tuple[str, str, str], Mapping[float, float]] = {
    ("permuted-mnist", "dco-comp", "k"): {100: 10.81, 200: 8.83, 500: 7.04, 800: 5.14, 1000: 4.85},
}
"""Average error in % by the setting's value, for (benchmark, method, setting)."""
