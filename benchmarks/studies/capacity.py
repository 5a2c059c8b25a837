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
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.benchmarks import CLScenario
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_dco.errors import SettingError
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import capacity_metrics, error_metrics
from avalanche_dco.models import MLP, mlp_256
from benchmarks.methods import get_method
from benchmarks.presets import PRESETS
from benchmarks.runs.kept import Study, add_out_argument, read_study, write_study
from benchmarks.runs.learning import make_strategy
from benchmarks.runs.provenance import provenance
from benchmarks.runs.records import Run
from benchmarks.streams.catalogue import TASKS, Data, missing_files
from benchmarks.streams.digits import INPUT_SIZE, permuted_digits
from benchmarks.studies.capacity_figures import cost_by_share, draw, summary

_KEPT_METRICS = (
    "CapacityStart",
    "CapacityEnd",
    "DirectionMemory",
    "AverageError",
    "FWIError",
    "BWTError",
    "ErrorMatrix",
)


_DIGITS = {"dco": {"k": 200, "gradients_per_update": 16, "autoencoder_updates": 100}, "naive": {}}


@dataclass(frozen=True)
class Setup:
    """What is learned, by which network and how.

    :param preset: the benchmark whose training settings and files are used.
    :param build: makes the stream from a seed and the folder that holds the data.
    :param network: makes the network.
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
            "dco": {"k": 1000, "gradients_per_update": 16, "autoencoder_updates": 100},
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
    missing = missing_files(SETUPS[args.data].preset, args.data_root)
    if missing:
        raise SettingError(
            f"--data {args.data} needs files that are not there. Give --data-root a folder that "
            f"holds {', '.join(missing)}."
        )
    study = read_study(args.out) if args.out.exists() else Study()
    frames = []
    for seed in args.seeds:
        for method in args.methods:
            name = f"{args.data}-{method}-seed{seed}"
            if name not in study.runs:
                study.add([measure(name, args.data, method, seed, args.data_root)])
                write_study(args.out, study)
            frames.append(study.runs[name].metrics.assign(method=method, seed=seed))
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
    """Learn the stream.

    :param name: what the run is called.
    :param data: one of :data:`SETUPS`.
    :param method: name of the method.
    :param seed: seed of everything random.
    :param root: folder that holds the data.
    """
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
