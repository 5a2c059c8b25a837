"""How full a network gets: the capacity meter over a stream of permuted tasks.

Examples:
  python -m benchmarks capacity --data permuted-digits --seeds 1 2 3
  python -m benchmarks capacity --data permuted-mnist --data-root ~/data
  python -m benchmarks capacity --data permuted-digits-narrow --seeds 1 2 3 --figures .

Every run is added to the study --out, with its metrics and how it was made; a run that is there
already is not repeated. With --figures, the tables of the data are drawn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.benchmarks import CLScenario
from avalanche.training.plugins import EvaluationPlugin
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn

from avalanche_dco import DCOPlugin
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import capacity_metrics, error_metrics
from avalanche_dco.models import MLP, mlp_256
from avalanche_dco.plots import plot_capacity
from avalanche_dco.plots.style import WIDTH, look_of, new_figure
from benchmarks.methods import get_method
from benchmarks.presets import PRESETS
from benchmarks.report.figures import save_svg
from benchmarks.runs.kept import add_out_argument, kept_run
from benchmarks.runs.learning import make_strategy
from benchmarks.runs.provenance import provenance
from benchmarks.runs.records import Run
from benchmarks.streams.catalogue import TASKS, Data, require_files
from benchmarks.streams.digits import INPUT_SIZE, permuted_digits

_BANDS = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01]
_NAMES = {"dco": "DCO", "naive": "Naive"}
_KEPT_METRICS = (
    "CapacityStart",
    "CapacityEnd",
    "DirectionMemory",
    "AverageError",
    "FWIError",
    "BWTError",
    "ErrorMatrix",
)


_FEWER = {"gradients_per_update": 16, "autoencoder_updates": 100}
_DIGITS = {"dco": {**DCOPlugin.published(), **_FEWER, "k": 200}, "naive": {}}


@dataclass(frozen=True)
class Setup:
    """What is learned, by which network and how.

    :param preset: the benchmark whose training settings and files are used.
    :param build: makes the stream from a seed and the folder that holds the data.
    :param methods: settings of the methods; Naive, which has none, shows what the tasks cost a
        network without constraints.
    """

    preset: str
    build: Callable[[int, Path | None], CLScenario]
    network: Callable[[], nn.Module]
    methods: dict[str, dict[str, Any]]


SETUPS = {
    "permuted-mnist": Setup(
        "permuted-mnist",
        lambda seed, root: TASKS["permuted-mnist"].build(seed, Data(root)),
        mlp_256,
        {
            "dco": {**DCOPlugin.published(), **_FEWER},
            "naive": {},
        },
    ),
    "permuted-digits": Setup(
        "permuted-digits",
        lambda seed, root: permuted_digits(20, seed=seed),
        lambda: MLP(INPUT_SIZE, hidden_size=100),
        _DIGITS,
    ),
    # A seventh of the weights, for nearly as many directions as weights in the end.
    "permuted-digits-narrow": Setup(
        "permuted-digits",
        lambda seed, root: permuted_digits(20, seed=seed),
        lambda: MLP(INPUT_SIZE, hidden_size=30),
        _DIGITS,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, choices=sorted(SETUPS))
    parser.add_argument("--methods", nargs="+", choices=["dco", "naive"], default=["dco", "naive"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data-root", type=Path, help="folder that holds MNIST/raw/...")
    add_out_argument(parser, "capacity")
    parser.add_argument("--figures", type=Path, help="folder to draw into; nothing is drawn if not")


def run(args: argparse.Namespace) -> int:
    """Run what is not there yet, print a table of everything asked for."""
    require_files(SETUPS[args.data].preset, args.data_root)
    frames = []
    for seed in args.seeds:
        for method in args.methods:
            name = f"{args.data}-{method}-seed{seed}"
            made = kept_run(
                args.out, name, partial(measure, name, args.data, method, seed, args.data_root)
            )
            frames.append(made.metrics.assign(method=method, seed=seed))
    frame = pd.concat(frames)
    print("Mean over seeds; errors in %")
    print(summary(frame).to_string(float_format="{:.3f}".format, na_rep=""))
    if set(args.methods) == {"dco", "naive"}:
        print("Error on the new experience, DCO's minus Naive's (%), by CapacityStart:")
        print(cost_by_share(frame).round(2))
    if args.figures is not None:
        draw(frame, args.figures, args.data)
    return 0


def measure(name: str, data: str, method: str, seed: int, root: Path | None) -> Run:
    """Learn the stream."""
    setup = SETUPS[data]
    training = PRESETS["paper"][setup.preset].training
    torch.manual_seed(seed)
    stream = setup.build(seed, root)
    network = setup.network()
    logger = PandasLogger()
    metrics = [error_metrics(matrix=True), capacity_metrics() if method != "naive" else []]
    strategy = make_strategy(
        get_method(method),
        setup.methods[method],
        network,
        training,
        evaluator=EvaluationPlugin(*metrics, loggers=[logger]),
    )
    started = time.perf_counter()
    for number, experience in enumerate(stream.train_stream, start=1):
        strategy.train(experience)
        strategy.eval(stream.test_stream)
        seconds = time.perf_counter() - started
        print(
            f"{data}, {method}, seed {seed}: {number} of {len(stream.train_stream)} experiences "
            f"after {seconds:.0f} s",
            flush=True,
        )
    record = {
        "data": data,
        "method": method,
        "seed": seed,
        "settings": setup.methods[method],
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "lr": training.lr,
        "momentum": 0.9,
        "weight_decay": training.weight_decay,
        "weights": sum(p.numel() for p in network.parameters()),
    }
    seconds = round(time.perf_counter() - started, 1)
    # Where the data lay is nobody's business, and says nothing about the run.
    command = f"python -m benchmarks capacity --data {data} --methods {method} --seeds {seed}"
    record |= provenance() | {"command": command + (" --data-root DATA" if root else "")}
    frame = logger.to_frame()
    kept = frame["metric"].isin(_KEPT_METRICS) & frame["value"].notna()
    return Run(name, record, {"seconds": seconds}, frame[kept])


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """What each experience did to the meter and to the errors, means over seeds.

    :param frame: metrics of one or several runs, with the columns ``method`` and ``seed``.
    :return: by method and number of experiences trained: the shares at start and end, memory in
        MiB, the error on the new experience, the average error so far and the BWT error, in %.
    """

    def mean(metric: str, scale: float, own: bool = False) -> pd.Series:
        rows = frame[frame["metric"] == metric]
        if own:
            rows = rows[rows["experience"] == rows["training_experience"]]
        return scale * rows.groupby(["method", "trained"], sort=False)["value"].mean()

    return pd.DataFrame(
        {
            "start": mean("CapacityStart", 1),
            "end": mean("CapacityEnd", 1),
            "MiB": mean("DirectionMemory", 2**-20),
            "new": mean("ErrorMatrix", 100, own=True),
            "average": mean("AverageError", 100),
            "BWT": mean("BWTError", 100),
        }
    )


def cost_by_share(frame: pd.DataFrame) -> pd.DataFrame:
    """What a share at the start announces: how much worse than by Naive the task is learned.

    Every experience but the first is compared with the same experience of the same seed.

    :return: by band of ``CapacityStart``: the number of experiences, and DCO's error on the new
        experience, right after its training, minus Naive's, in %: mean, least and most.
    """
    new = "metric == 'ErrorMatrix' and experience == training_experience"

    def values(query: str) -> pd.Series:
        return frame.query(query).set_index(["seed", "trained"])["value"]

    start = values("method == 'dco' and metric == 'CapacityStart' and trained > 1")
    cost = 100 * (values(f"method == 'dco' and {new}") - values(f"method == 'naive' and {new}"))
    cost = cost.reindex(start.index)
    bands = pd.cut(start, _BANDS, right=False)
    return cost.groupby(bands, observed=True).agg(["count", "mean", "min", "max"])


def draw(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """Draw the meter and the errors into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = frame[frame["method"] == "dco"].assign(method=_NAMES["dco"])
    save_svg(folder / f"{name}-capacity.svg", plot_capacity, measured)
    save_svg(folder / f"{name}-errors.svg", plot_errors, frame)


def plot_errors(frame: pd.DataFrame) -> Figure:
    """Error of each new experience right after its training, and average error so far."""
    figure, axes = new_figure(WIDTH)
    for method, rows in summary(frame).groupby(level="method", sort=False):
        one = rows.droplevel("method")
        name, look = _NAMES[str(method)], look_of(list(_NAMES).index(str(method)))
        hollow = look | {"linestyle": "--", "mfc": "white"}
        axes.plot(one.index, one["new"], label=f"{name}, new task", **look)
        axes.plot(one.index, one["average"], label=f"{name}, all tasks so far", **hollow)
    axes.set(xlabel="Experiences trained", ylabel="Test error (%)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
