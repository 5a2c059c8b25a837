"""What a newcomer to Avalanche sees: seconds per experience of each plugin's first line.

SplitMNIST and SimpleMLP(hidden_size=512) as Avalanche has them, its own loader, one epoch, and the
plugins as one writes them first. The methods take turns experience by experience, so that a busy
moment affects all alike.

Example:
  python -m benchmarks newcomer --data-root ~/data
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from statistics import fmean

import torch
from avalanche.benchmarks.classic import SplitMNIST
from avalanche.models import SimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import nn

from avalanche_dco import DCOCompPlugin, DCOKronPlugin, DCOPlugin, seed_everything

_PLUGINS = {
    "naive": lambda: [],
    "dco": lambda: [DCOPlugin(k=1000)],
    "dco-comp": lambda: [DCOCompPlugin(k=1000)],
    "dco-kron": lambda: [DCOKronPlugin()],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds MNIST")
    parser.add_argument("--experiences", type=int, default=5, help="of five; default: all")


def run(args: argparse.Namespace) -> int:
    """Measure, and print a line per method."""
    seconds = newcomer(args.data_root, args.experiences)
    for method, each in seconds.items():
        mean = fmean(each)
        print(
            f"{method:9} {mean:6.2f} s per experience, {mean / fmean(seconds['naive']):5.2f} times "
            f"Naive; one by one: {', '.join(f'{one:.2f}' for one in each)}"
        )
    return 0


def newcomer(data_root: Path, experiences: int = 5) -> dict[str, list[float]]:
    """Processor seconds of each experience, by method.

    :param data_root: folder that holds MNIST.
    :param experiences: how many of the five are learned.
    """
    benchmark = SplitMNIST(5, seed=1, dataset_root=data_root)
    strategies = {}
    for method, plugins in _PLUGINS.items():
        seed_everything(1)
        model = SimpleMLP(num_classes=10, hidden_size=512)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No loggers specified")
            strategies[method] = Naive(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                criterion=nn.CrossEntropyLoss(),
                train_mb_size=128,
                train_epochs=1,
                eval_mb_size=128,
                plugins=plugins(),
                evaluator=EvaluationPlugin(loggers=[]),
            )
    seconds: dict[str, list[float]] = {method: [] for method in strategies}
    for experience in list(benchmark.train_stream)[:experiences]:
        for method, strategy in strategies.items():
            start = time.process_time()
            strategy.train(experience)
            seconds[method].append(time.process_time() - start)
    return seconds
