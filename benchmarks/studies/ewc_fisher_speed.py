"""Measure EWC's exact Fisher information in batches against one backward pass per sample.

Both run in turn on the same data and network (784-256-256-256-10). Prints the median times, their
ratio, and the largest relative difference of the results.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.models import mlp_256
from benchmarks.studies.timing import add_timing_arguments, alternately, prepare, show

_BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=1000, help="default: 1000")
    add_timing_arguments(parser, repeats=5)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    model = mlp_256().eval()
    x, y = torch.randn(args.samples, 784), torch.randint(10, (args.samples,))
    slow, fast = _one_by_one(model, x, y), _in_batches(model, x, y)
    differences = [(slow[name] - fast[name]).abs().max() / slow[name].abs().max() for name in slow]
    one_by_one, in_batches = alternately(
        args.repeats, lambda: _one_by_one(model, x, y), lambda: _in_batches(model, x, y)
    )
    figures = {
        "threads": args.threads,
        "samples": args.samples,
        "one_by_one_seconds": one_by_one,
        "in_batches_seconds": in_batches,
        "ratio": one_by_one / in_batches,
        "largest_relative_difference": max(differences).item(),
    }
    show(figures, args.out)
    return 0


def _one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The definition: one forward and backward pass per sample."""
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(sample), label).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            fisher[name] += parameter.grad.square()
    return {name: value / len(x) for name, value in fisher.items()}


def _in_batches(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What EWCPlugin does."""
    tasks = torch.zeros(len(x), dtype=torch.long)
    batches = zip(x.split(_BATCH), y.split(_BATCH), tasks.split(_BATCH), strict=True)
    return mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)
