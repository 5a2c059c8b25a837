"""Measure a training step of the paper's ConvNet in the precisions and memory formats there are.

Example:
  OMP_NUM_THREADS=1 python -m benchmarks precision-speed
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

from avalanche_dco.errors import SettingError
from avalanche_dco.models import ConvNet
from benchmarks.runs.precision import Bfloat16Training
from benchmarks.studies.timing import add_out_argument, alternately, show

_CLASSES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--batch-size", type=int, default=64, help="default: 64, the paper's")
    parser.add_argument("--repeats", type=int, default=30, help="steps timed; default: 30")
    add_out_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    for name in ("batch_size", "repeats"):
        if getattr(args, name) < 1:
            raise SettingError(f"--{name.replace('_', '-')} must be at least 1.")
    channels_last = ConvNet(_CLASSES).to(memory_format=torch.channels_last)
    networks = {
        "contiguous float32": ConvNet(_CLASSES),
        "channels-last float32": channels_last,
        "channels-last bfloat16": Bfloat16Training(channels_last),
    }
    steps = [_step(network, args.batch_size) for network in networks.values()]
    seconds = alternately(args.repeats, *steps)
    figures = {
        "threads": torch.get_num_threads(),
        "batch_size": args.batch_size,
        "milliseconds": {
            name: round(1e3 * spent, 1) for name, spent in zip(networks, seconds, strict=True)
        },
    }
    show(figures, args.out)
    return 0


def _step(network: nn.Module, batch_size: int) -> Callable[[], None]:
    """One step of SGD on random pictures."""
    inputs = torch.randn(batch_size, 3, 32, 32)
    targets = torch.randint(_CLASSES, (batch_size,))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()

    return step
