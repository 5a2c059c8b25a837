"""A ResNet-18 with BatchNorm on the first tasks of Split CIFAR-10: errors, time per step, memory.

Examples:
  python -m benchmarks resnet --npz cifar10.npz --method naive
  python -m benchmarks resnet --npz cifar10.npz --method dco
  python -m benchmarks resnet --npz cifar10.npz --method dco-kron

One process measures one method. Its peak memory counts from when the data are loaded, without them
and the libraries, which needs Linux. The run is added to the study --out; one that is there already
is not repeated. Short on purpose: a few thousand images per task and few epochs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torchvision.models import resnet18  # type: ignore[import-untyped]

from avalanche_dco import seed_everything
from avalanche_dco.logging import PandasLogger
from avalanche_dco.metrics import error_metrics
from avalanche_dco.models import TaskMasked
from benchmarks.methods import get_method
from benchmarks.runs.cost import kept_bytes, peak_megabytes
from benchmarks.runs.kept import add_out_argument, kept_run
from benchmarks.runs.learning import make_strategy
from benchmarks.runs.provenance import provenance
from benchmarks.runs.records import Run
from benchmarks.runs.training import Training
from benchmarks.streams.cifar import split_arrays, split_cifar
from benchmarks.streams.tensors import first_experiences, tensor_benchmark

METHODS: dict[str, dict[str, Any]] = {"naive": {}, "dco": {"k": 200}, "dco-kron": {}}
"""Settings of the methods; what is not named has its default."""
_METRICS = ("AverageError", "FWIError", "BWTError", "ErrorMatrix")
_CLASSES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", choices=METHODS, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data-root", type=Path, help="folder with cifar-10-batches-py")
    source.add_argument("--npz", type=Path, help="arrays in place of CIFAR-10")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--images", type=int, default=5000, help="training images per task")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    add_out_argument(parser, "resnet")


class _Clock(SupervisedPlugin):
    """Seconds of every training step, and of what follows the last one of an experience.

    Goes last, so that a step ends when all other plugins have seen it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[float]] = []
        self.seconds_after: list[float] = []
        self._last = 0.0

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        self.steps.append([])

    def before_training_epoch(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        self._last = time.perf_counter()

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.steps[-1].append(now - self._last)
        self._last = now

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        self.seconds_after.append(time.perf_counter() - self._last)


def _forget_peak() -> float:
    """Let the process's peak memory be what it has now, in MB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_megabytes()


def run(args: argparse.Namespace) -> int:
    """Measure one method, unless the study has it."""
    name = f"resnet18-{args.method}-seed{args.seed}"
    print(kept_run(args.out, name, partial(measure, name, args)).outcome)
    return 0


def measure(name: str, args: argparse.Namespace) -> Run:
    """Learn the tasks with one method."""
    torch.set_num_threads(1)
    seed_everything(args.seed)
    stream = (
        split_cifar(_CLASSES, args.data_root)
        if args.npz is None
        else (split_arrays(args.npz, like=_CLASSES))
    )
    stream = first_experiences(stream, args.tasks)
    stream = tensor_benchmark(
        [e.dataset.subset(list(range(args.images))) for e in stream.train_stream],
        [e.dataset for e in stream.test_stream],
    )
    before = _forget_peak()
    method = get_method(args.method)
    training = Training(epochs=args.epochs, batch_size=64, lr=1e-2, weight_decay=0.0)
    network = TaskMasked(resnet18(num_classes=_CLASSES), _CLASSES)
    logger, clock = PandasLogger(), _Clock()
    strategy = make_strategy(
        method,
        METHODS[args.method],
        network,
        training,
        evaluator=EvaluationPlugin(error_metrics(matrix=True), loggers=[logger]),
        plugins=[clock],
    )
    # After the method's own plugin.
    strategy.plugins.append(strategy.plugins.pop(strategy.plugins.index(clock)))
    started = time.perf_counter()
    for experience in stream.train_stream:
        strategy.train(experience)
        strategy.eval(stream.test_stream)
    frame = logger.to_frame()
    last = {name: rows["value"].iloc[-1] for name, rows in frame.groupby("metric")}
    outcome = {
        "average": 100 * last["AverageError"],
        "fwi": 100 * last["FWIError"],
        "bwt": 100 * last["BWTError"],
        "seconds": round(time.perf_counter() - started, 1),
        "memory_bytes": kept_bytes(method, strategy),
        "peak_megabytes": peak_megabytes() - before,
        # The mean, since the damped step comes every few updates.
        "step_milliseconds": [round(1e3 * statistics.fmean(s), 1) for s in clock.steps],
        "seconds_after_training": [round(s, 1) for s in clock.seconds_after],
        "seconds_of_experiences": [
            round(sum(steps) + after, 1)
            for steps, after in zip(clock.steps, clock.seconds_after, strict=True)
        ],
    }
    config = {
        "benchmark": "split-cifar10",
        "method": args.method,
        "seed": args.seed,
        "split": "test",
        "network": "resnet18",
        "settings": METHODS[args.method],
        "tasks": args.tasks,
        "images": args.images,
        **training.as_json(),
        **provenance(),
    }
    kept = frame["metric"].isin(_METRICS) & frame["value"].notna()
    return Run(name, config, outcome, frame[kept])
