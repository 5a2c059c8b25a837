"""Naive, EWC and DCO on handwritten digits, in one table: what ``make demo`` shows.

Real data (scikit-learn's bundled digits), nothing to download, about a minute on two cores.
"""

from __future__ import annotations

import warnings

from rich.console import Console

from benchmarks.presets import PRESETS
from benchmarks.run import Job, run_all, table

BENCHMARKS = ("permuted-digits", "split-digits")
METHODS = ("naive", "ewc", "dco")


def main() -> None:
    """Run the demonstration."""
    # Avalanche's own notices about its older interfaces say nothing about this demonstration.
    warnings.filterwarnings("ignore", module="avalanche")
    jobs = [
        Job(benchmark, method, 1, PRESETS[benchmark], PRESETS[benchmark].settings(method))
        for benchmark in BENCHMARKS
        for method in METHODS
    ]
    rows = run_all(jobs, out=None)
    console = Console()
    console.print(table(rows))
    naive, dco = (
        next(r for r in rows if r["benchmark"] == "permuted-digits" and r["method"] == method)
        for method in ("naive", "dco")
    )
    console.print(
        f"On permuted digits DCO's average error is {dco['average']:.1f} %, Naive's "
        f"{naive['average']:.1f} %: {dco['average'] / naive['average']:.2f} of it."
    )


if __name__ == "__main__":
    main()
