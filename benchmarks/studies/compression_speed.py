"""Measure DCO-COMP's penalty after many tasks against after few: time per step and memory.

Directions of 20 tasks (random ones: the cost does not depend on their values) are compressed one
task after the other for MLP-256. The penalty with its gradient is then timed after task 2 and after
task 20, alternately, and the medians are compared; so is DCO's, which grows with every task. Only
an idle machine gives figures that mean anything.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from avalanche_dco.core.compressed_tasks import CompressedTasks
from avalanche_dco.core.compression import compress
from avalanche_dco.core.directions import Directions
from avalanche_dco.core.factors import Weights
from avalanche_dco.core.penalty import Penalty
from avalanche_dco.models import mlp_256
from benchmarks.studies.timing import add_timing_arguments, alternately, prepare, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", type=int, default=1000, help="directions (default 1000)")
    parser.add_argument("--few", type=int, default=2, help="tasks to compare with (default 2)")
    parser.add_argument("--many", type=int, default=20, help="tasks in the end (default 20)")
    add_timing_arguments(parser, repeats=100)


def run(args: argparse.Namespace) -> int:
    prepare(args)
    x = {name: p.detach().requires_grad_() for name, p in mlp_256().named_parameters()}
    figures: dict[str, Any] = {
        name: getattr(args, name) for name in ("k", "threads", "few", "many")
    }
    compressed = [_compressed(x, args.k, tasks) for tasks in (args.few, args.many)]
    penalties = [held.penalty() for held in compressed]
    figures["dco_comp"] = _compare(x, penalties, [held.nbytes for held in compressed], args.repeats)
    penalties = [_of_dco(x, args.k * tasks) for tasks in (args.few, args.many)]
    figures["dco"] = _compare(x, penalties, [held.nbytes for held in penalties], args.repeats)
    show(figures, args.out)
    return 0


def _compare(
    x: Weights, penalties: list[Penalty], sizes: list[int], repeats: int
) -> dict[str, float]:
    """Times in ms and bytes, after few tasks and after many."""
    few, many = alternately(
        repeats, *(lambda p=penalty: p(x, 100.0, None).backward() for penalty in penalties)
    )
    return {
        "ms_after_few": round(1e3 * few, 3),
        "ms_after_many": round(1e3 * many, 3),
        "time_ratio": round(many / few, 3),
        "bytes_after_few": sizes[0],
        "bytes_after_many": sizes[1],
        "bytes_ratio": round(sizes[1] / sizes[0], 4),
    }


def _compressed(x: Weights, k: int, tasks: int) -> CompressedTasks:
    held = None
    for _ in range(tasks):
        held, _ = compress(held, Directions.random(x, k // 2), x, k=k, updates=1)
    assert held is not None
    return held


def _of_dco(x: Weights, columns: int) -> Penalty:
    return Penalty(Directions.random(x, columns), torch.randn(columns))
