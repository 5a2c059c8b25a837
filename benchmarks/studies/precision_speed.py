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
from benchmarks.studies.timing import add_timing_arguments, alternately, prepare, show

_CLASSES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=64, help="default: 64, the paper's")
    add_timing_arguments(parser, repeats=30)


def run(args: argparse.Namespace) -> int:
    if args.batch_size < 1:
        raise SettingError(f"--batch-size {args.batch_size}: use at least 1.")
    prepare(args)
    channels_last = ConvNet(_CLASSES).to(memory_format=torch.channels_last)
    networks = {
        "contiguous float32": ConvNet(_CLASSES),
        "channels-last float32": channels_last,
        "channels-last bfloat16": Bfloat16Training(channels_last),
    }
    seconds = alternately(args.repeats, *(_step(n, args.batch_size) for n in networks.values()))
    spent = {name: round(1e3 * s, 1) for name, s in zip(networks, seconds, strict=True)}
    figures = {"threads": args.threads, "batch_size": args.batch_size, "milliseconds": spent}
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
