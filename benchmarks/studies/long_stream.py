"""Measure memory, time and counters along a stream of many experiences of permuted digits.

Writes one line per experience to the study `long-stream`, of which the table in docs/reliability.md
is made. Times are those of the processor, so that whatever else
the machine does matters little.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco import DCO, DCOComp, seed_everything
from benchmarks.runs.kept import add_measurements, add_out_argument
from benchmarks.runs.provenance import provenance
from benchmarks.streams.digits import INPUT_SIZE, NUM_CLASSES, permuted_digits

METHODS = {"dco": DCO, "dco-comp": DCOComp}
_COMPRESSION: dict[str, dict[str, Any]] = {"dco": {}, "dco-comp": {"compression_updates": 10}}
_K = {"dco": 20, "dco-comp": 200}
_BATCH, _EPOCHS, _WIDTH = 64, 2, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--experiences", type=int, default=100)
    parser.add_argument("--k", type=int, help="directions; 200 for DCO-COMP, 20 for DCO")
    parser.add_argument("--seed", type=int, default=0)
    add_out_argument(parser, "long-stream")


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # small matrices
    rows = measure(args.method, args.experiences, args.k or _K[args.method], args.seed)
    add_measurements(args.out, "method", args.method, pd.DataFrame(rows), provenance(1))
    print(args.out)
    return 0


class _StepTimes(SupervisedPlugin):
    """Processor seconds of every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._start = 0.0

    def before_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Start the watch."""
        self._start = time.process_time()

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Stop the watch."""
        self.seconds.append(time.process_time() - self._start)


def measure(method: str, experiences: int, k: int, seed: int) -> list[dict[str, Any]]:
    """Train on a stream; one row of measurements per experience."""
    seed_everything(seed)
    benchmark = permuted_digits(experiences, seed=seed)
    model = nn.Sequential(nn.Linear(INPUT_SIZE, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, NUM_CLASSES))
    times = _StepTimes()
    strategy = METHODS[method](
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        k=k,
        directions="trained",
        couple_layers=True,
        penalty_every=1,
        push_epochs=1,
        gradients_per_update=8,
        autoencoder_updates=10,
        train_mb_size=_BATCH,
        train_epochs=_EPOCHS,
        plugins=[times],
        evaluator=EvaluationPlugin(loggers=[]),
        **_COMPRESSION[method],
    )
    plugin: Any = strategy.plugins[0]
    rows, steps = [], 0
    for number, experience in enumerate(benchmark.train_stream, 1):
        times.seconds.clear()
        start = time.process_time()
        strategy.train(experience)
        steps += _EPOCHS * -(-len(experience.dataset) // _BATCH)
        rows.append(
            {
                "experiences": number,
                "step_ms": round(1e3 * statistics.median(times.seconds), 4),
                "experience_seconds": round(time.process_time() - start, 3),
                "plugin_bytes": plugin.memory_bytes,
                "process_bytes": _resident_bytes(),
                "steps_counted": strategy.clock.train_iterations,
                "steps_made": steps,
                "experiences_counted": strategy.clock.train_exp_counter,
                "experiences_in_plugin": plugin.state_dict()["clock"]["train_exp_counter"],
            }
        )
        if number % 10 == 0:
            print(f"{method}: {number} of {experiences} experiences", flush=True)
    return rows


def _resident_bytes() -> int:
    """Memory of this process as the system sees it, without what it could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
