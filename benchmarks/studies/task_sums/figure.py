"""The share of free directions against the error on the newest task, from the study of sums."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from avalanche_dco.plots.style import look_of
from benchmarks.runs.kept import Study
from benchmarks.runs.records import Run

FIRST = "FreeShare/1.weight"
"""The first layer has most of the weights."""
_GROWTHS = {1.0: "", 0.5: " / √n", 0.0: " / n"}


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
    """Strength and growth in a word."""
    config = run.config
    return f"λ = {config['strength']:g}{_GROWTHS[config['growth']]}"


def draw(study: Study, network: str) -> Figure:
    """Both sides: shares over tasks with the default, and the error against the share for all."""
    rows = points(study, network)
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    default = rows[rows["label"] == "λ = 100 / n"]
    for index, name in enumerate(c for c in rows.columns if c.startswith("FreeShare/")):
        label = name.removeprefix("FreeShare/")
        left.plot(default["trained"], default[name], label=label, **look_of(index))
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
