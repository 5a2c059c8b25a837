"""Measure which share of a run is spent on loading batches.

Every batch that training takes (steps 1 to 3 of DCO) is timed where it is taken, and so is reading
an experience into tensors, in a real run.

Example:
  python -m benchmarks data-path-speed --methods naive dco --data-root ~/data
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.plugins.support import sampling
from benchmarks.methods import METHODS
from benchmarks.presets import PRESETS
from benchmarks.runs.jobs import Job
from benchmarks.runs.learning import learn
from benchmarks.runs.planning import Plan, Request
from benchmarks.streams import data_path
from benchmarks.streams.catalogue import TASKS, Data
from benchmarks.studies.timing import add_out_argument, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--benchmark", default="split-mnist", choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=["naive", "dco"], choices=list(METHODS))
    parser.add_argument("--preset", choices=list(PRESETS), default="fast", help="default: fast")
    parser.add_argument("--data-root", type=Path, help="folder that holds MNIST/raw/...")
    add_out_argument(parser)


def run(args: argparse.Namespace) -> int:
    plan = Plan(Request(args.benchmark, args.methods, args.preset, Data(args.data_root)))
    jobs = [plan.job(method, seed=1) for method in args.methods]
    figures: dict[str, Any] = {"benchmark": args.benchmark, "preset": args.preset}
    figures["methods"] = {job.method: share_of(job) for job in jobs}
    show(figures, args.out)
    return 0


class _NoCheckpoints:
    def load(self, strategy: SupervisedTemplate) -> tuple[SupervisedTemplate, int]:
        return strategy, 0

    def save(self, strategy: SupervisedTemplate) -> None:
        """Nothing is kept: the run ends with the measurement."""


def share_of(job: Job) -> dict[str, float]:
    """Seconds that training took, those of loading among them, and their ratio."""
    with _stopwatch() as loading:
        outcome = learn(job, _NoCheckpoints(), lambda done, total: None)
    seconds = outcome.summary["seconds"]
    spent = sum(loading)
    return {
        "seconds": round(seconds, 2),
        "loading_seconds": round(spent, 2),
        "loading_share": round(spent / seconds, 4),
    }


@contextmanager
def _stopwatch() -> Iterator[list[float]]:
    """Record the time of every data set read and of every batch taken inside the block."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                spent.append(time.perf_counter() - start)

        return call

    def timed_batches(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        return lambda loader: iter(partial(timed(next), original(loader), None), None)

    with ExitStack() as patches:
        for module in (sampling, data_path):
            patches.enter_context(patch.object(module, "as_tensors", timed(module.as_tensors)))
        for owner in (sampling.BatchStream, data_path.ShuffledBatches):
            patches.enter_context(patch.object(owner, "__iter__", timed_batches(owner.__iter__)))
        yield spent
