"""Measure EWC's exact Fisher information against one backward pass per sample.

Both run in turn on the same data and network (784-256-256-256-10), and the medians are compared.
Only an idle machine gives figures that mean anything.
"""

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from avalanche_dco.baselines.per_sample import mean_transformed_gradients
from avalanche_dco.models import mlp_256
from benchmarks.studies.timing import add_timing_arguments, alternately, show

BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--samples", type=int, default=1000)
    add_timing_arguments(parser, repeats=5)


def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The definition: one forward and backward pass per sample."""
    fisher = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    criterion = nn.CrossEntropyLoss()
    for index in range(len(x)):
        model.zero_grad()
        criterion(model(x[index : index + 1]), y[index : index + 1]).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                fisher[name] += parameter.grad.square()
    return {name: value / len(x) for name, value in fisher.items()}


def in_batches(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What EWCPlugin does."""
    tasks = torch.zeros(len(x), dtype=torch.long)
    batches = zip(x.split(BATCH), y.split(BATCH), tasks.split(BATCH), strict=True)
    return mean_transformed_gradients(model, batches, nn.CrossEntropyLoss(), torch.square)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = mlp_256().eval()
    x, y = torch.randn(args.samples, 784), torch.randint(10, (args.samples,))
    slow, fast = one_by_one(model, x, y), in_batches(model, x, y)
    slow_time, fast_time = alternately(
        args.repeats, partial(one_by_one, model, x, y), partial(in_batches, model, x, y)
    )
    figures = {
        "threads": args.threads,
        "samples": args.samples,
        "one_by_one_seconds": slow_time,
        "in_batches_seconds": fast_time,
        "ratio": slow_time / fast_time,
        "largest_relative_difference": max(
            ((slow[name] - fast[name]).abs().max() / slow[name].abs().max()).item() for name in slow
        ),
    }
    show(figures, args.out)
    return 0
