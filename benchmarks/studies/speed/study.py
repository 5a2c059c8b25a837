"""How fast it is: every time against what it could be, in one run.

Examples:
  python -m benchmarks speed --threads 1 --data-root ~/data
  python -m benchmarks speed --quick --out runs/speed.csv.xz

Times of a group are taken in turn, so that a busy moment affects all alike, and reported as ratios:
the autoencoder's update against large matrix products and against autograd; every form of the
penalty's step against its two matrix products; the step of DCO, DCO-COMP and DCO-KRON after 2 to 50
tasks; exponents of growth in k, in the number of weights and in tasks; whole trainings of every
method against Naive's in the same data path, with what they keep and their peak memory.

Writes the study `speed` (benchmarks/results/speed.csv.xz) and docs/figures/speed.svg; the
tables of docs/speed.md are made from it by `python -m benchmarks tables`. Only an idle machine
gives figures that mean anything.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

from avalanche_dco.errors import SettingError
from avalanche_dco.plots.style import look_of
from benchmarks.report.figures import save_svg
from benchmarks.runs.kept import RESULTS, add_out_argument, study_path, write_measurements
from benchmarks.runs.provenance import provenance
from benchmarks.streams.catalogue import require_files
from benchmarks.studies.speed import core, training

_FIGURE = RESULTS.parent.parent / "docs" / "figures" / "speed.svg"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--data-root", type=Path, metavar="DIR", help="folder with MNIST, for split-mnist"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; figures mean nothing"
    )
    add_out_argument(parser, "speed")
    parser.add_argument(
        "--figure", type=Path, metavar="FILE",
        help="default: docs/figures/speed.svg, or beside --out if that is given",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure everything, write the study and the figure."""
    if args.threads < 1:
        raise SettingError(f"--threads {args.threads}: use at least 1.")
    if args.data_root is not None:
        require_files("split-mnist", args.data_root)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    sizes = core.QUICK if args.quick else core.Sizes()
    start = time.perf_counter()
    frame = pd.DataFrame(_rows(sizes, args.data_root))
    config = provenance(args.threads) | {
        "sizes": asdict(sizes),
        "trained_with": "Mean over seeds: "
        f"{len(sizes.seeds)}. DCO, DCO-COMP and DCO-KRON have the defaults of their plugins; Split "
        "MNIST has its first two tasks.",
    }
    write_measurements(args.out, frame, config | {"seconds": round(time.perf_counter() - start)})
    default = args.out == study_path("speed")
    figure = args.figure or (_FIGURE if default else args.out.with_name("speed.svg"))
    figure.parent.mkdir(parents=True, exist_ok=True)
    save_svg(figure, plot, frame)
    print(frame.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    print(f"{time.perf_counter() - start:.0f} s: {args.out}, {figure}")
    return 0


def _rows(sizes: core.Sizes, data_root: Path | None) -> Iterator[core.Row]:
    for part, rows in {
        "autoencoder": core.autoencoder(sizes),
        "penalty": core.penalty(sizes),
        "tasks": core.tasks(sizes),
        "growth": core.growth(sizes),
        "others": training.others(sizes),
        "training": training.trainings(sizes, data_root),
    }.items():
        start = time.perf_counter()
        for row in rows:
            yield {"part": part, **row}
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


def plot(frame: pd.DataFrame) -> Figure:
    """Times of steps over tasks, and of whole trainings against Naive's.

    :param frame: the measurements.
    """
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (method, rows) in enumerate(frame[frame["part"] == "tasks"].groupby("case")):
        times = rows["seconds"] / rows["seconds"].iloc[0]
        left.plot(rows["at"], times, label=method, **look_of(index))
    left.set(xscale="log", yscale="log", xlabel="Past tasks")
    at = sorted(frame.loc[frame["part"] == "tasks", "at"].unique())
    left.set_xticks(at, [f"{n:.0f}" for n in at])
    left.minorticks_off()
    left.set_ylabel("Time of the penalty's step,\nover that after the fewest tasks")
    rows = frame[frame["part"] == "training"]
    labels = rows["case"].str.split(": ", expand=True)
    for index, (benchmark, own) in enumerate(rows.groupby(labels[0])):
        names = labels.loc[own.index, 1]
        right.plot(own["ratio"], names, **{**look_of(index), "linestyle": "", "label": benchmark})
    right.set(xscale="log", xlabel="Time of a whole training, over Naive's")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    return figure
