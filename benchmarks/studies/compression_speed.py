"""Measure DCO-COMP's penalty after many tasks against after few: time per step and memory.

Directions of 20 tasks (random ones: the cost does not depend on their values) are compressed one
task after the other for MLP-256. The penalty with its gradient is then timed after task 2 and after
task 20, alternately, and the medians are compared; DCO's, which grows with every task, stands
beside. Only an idle machine gives figures that mean anything.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from avalanche_dco.core.compressed_tasks import CompressedTasks
from avalanche_dco.core.compression import compress
from avalanche_dco.core.directions import Directions, Weights
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.models import mlp_256
from benchmarks.studies.timing import add_timing_arguments, alternately, show

_DCO_LAMBDA = 100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--k", type=int, default=1000, help="directions (default 1000)")
    parser.add_argument("--few", type=int, default=2, help="tasks to compare with (default 2)")
    parser.add_argument("--many", type=int, default=20, help="tasks in the end (default 20)")
    add_timing_arguments(parser, repeats=100)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    x = {name: p.detach().requires_grad_() for name, p in mlp_256().named_parameters()}
    figures = measure(x, args.k, args.few, args.many, args.repeats)
    show({"k": args.k, "threads": args.threads} | figures, args.out)
    return 0


def measure(x: Weights, k: int, few: int, many: int, repeats: int) -> dict[str, Any]:
    """Times in ms and bytes, after few tasks and after many, of DCO-COMP and of DCO.

    :param x: the network's weights.
    :param k: directions in all (DCO-COMP) or per task (DCO).
    :param few: a small number of tasks.
    :param many: a large number of tasks.
    :param repeats: how often each penalty is timed.
    """
    held = _after_tasks(x, k, {few, many})
    comp = {n: tasks.penalty() for n, tasks in held.items()}
    dco = {n: _of_dco(x, k, n) for n in (few, many)}
    figures: dict[str, Any] = {"few": few, "many": many}
    for name, stored, penalties in (("dco_comp", held, comp), ("dco", dco, dco)):
        seconds = alternately(
            repeats,
            partial(_step, penalties[few], x),
            partial(_step, penalties[many], x),
        )
        sizes = [stored[n].nbytes for n in (few, many)]
        figures[name] = {
            "ms_after_few": round(1e3 * seconds[0], 3),
            "ms_after_many": round(1e3 * seconds[1], 3),
            "time_ratio": round(seconds[1] / seconds[0], 3),
            "bytes_after_few": sizes[0],
            "bytes_after_many": sizes[1],
            "bytes_ratio": round(sizes[1] / sizes[0], 4),
        }
    return figures


def _after_tasks(x: Weights, k: int, wanted: set[int]) -> dict[int, CompressedTasks]:
    held, found = None, {}
    for task in range(1, max(wanted) + 1):
        held, _ = compress(held, Directions.random(x, k // 2), x, k=k, updates=1)
        if task in wanted:
            found[task] = held
    return found


def _of_dco(x: Weights, k: int, tasks: int) -> Penalty:
    directions = Directions.random(x, k * tasks)
    return Penalty(directions, torch.randn(directions.k))


def _step(penalty: Penalty, x: Weights) -> None:
    penalty(x, _DCO_LAMBDA, None).backward()
