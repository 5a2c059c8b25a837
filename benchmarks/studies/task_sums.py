"""Draw the free directions of the kept study of sums of curvatures over tasks.

The study compares ways to add the curvatures of many permutations of MNIST in constant memory; the
tables in docs/kron.md are made from it. Each of its runs names the commit and the command that made
it: the script with all sums is in the history, since none was better than the one that the plugin
uses.

Example:
  python -m benchmarks task-sums --figure docs/figures/free-directions.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from avalanche_dco.plots.style import look_of
from benchmarks.report.figures import save_svg
from benchmarks.runs.kept import Study, read_study, study_path
from benchmarks.runs.records import Run

FIRST = "FreeShare/1.weight"
"""The first layer has most of the weights."""
SHOWN = (5, 10, 20, 50)
"""After how many tasks tables show the average error of all tasks so far."""
_GROWTHS = {1.0: "", 0.5: " / √n", 0.0: " / n"}
_NETWORK = "mlp-100-100"

TITLES = {
    "mean": "sum of A, mean of S",
    "nearest": "nearest in the Frobenius norm",
    "kl": "KL-optimal, damped by 0.1",
    "eigenvalues": "one eigenvalue per direction",
    "low-rank": "1,000 directions in all",
}
"""What tables call the sums."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, metavar="FILE", required=True, help="an SVG file")


def run(args: argparse.Namespace) -> int:
    """Draw."""
    save_svg(args.figure, draw, read_study(study_path("task-sums")), _NETWORK)
    return 0


def points(study: Study, network: str) -> pd.DataFrame:
    """One row per run and number of tasks: the shares, and the error on the newest task in %.

    :param study: its runs of one Kronecker product per layer are taken.
    """
    frames = []
    for run in study.runs.values():
        if (run.config["network"], run.config["sum"]) == (network, "mean"):
            wide = run.metrics.pivot_table(index="trained", columns="metric", values="value")
            frames.append(wide.dropna(subset=[FIRST]).assign(run=run.name, label=strength_of(run)))
    return pd.concat(frames).assign(newest=lambda rows: 100 * rows["NewError"]).reset_index()


def strength_of(run: Run) -> str:
    """Strength and growth in a word; n is the number of tasks."""
    config = run.config
    return f"λ = {config['strength']:g}{_GROWTHS[config['growth']]}"


def draw(study: Study, network: str) -> Figure:
    """Both sides: shares over tasks at one strength, and the error against the share for all."""
    rows = points(study, network)
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = rows[rows["label"] == "λ = 100 / n"]
    for index, name in enumerate(c for c in rows.columns if c.startswith("FreeShare/")):
        label = name.removeprefix("FreeShare/")
        left.plot(shown["trained"], shown[name], label=label, **look_of(index))
    left.set(xlabel="Tasks learned", ylabel="Share of free directions", ylim=(-0.03, 1.03))
    for index, (strength, runs) in enumerate(rows.groupby("label", sort=False)):
        right.plot(runs[FIRST], runs["newest"], label=str(strength), **look_of(index))
    right.set(xlabel="Share of free directions, first layer", ylabel="Error on the newest task (%)")
    right.set_xlim(1.0, 0.0)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
    return figure
