"""What DCO-KRON costs: a training step, the estimate and memory, against plain SGD.

Examples:
  python -m benchmarks kron-speed
  python -m benchmarks kron-speed --quick --out runs/kron-speed.csv.xz

Plain loops on random data, with the plugin's defaults but for `negligible=0`: all directions are
kept, which is as slow as it gets, however many tasks there were. Eight steps share one damped step
and are timed together. Times are the processor's, of one thread, taken in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from avalanche_dco import DCOKronPlugin
from avalanche_dco.core.curvature import CurvatureEstimator
from avalanche_dco.core.damping import DampedUpdate
from avalanche_dco.core.kronecker import Curvature
from avalanche_dco.models import ConvNet, mlp_256
from benchmarks.runs.kept import add_out_argument, write_measurements
from benchmarks.runs.provenance import provenance
from benchmarks.studies.speed.core import alternately

# Network, batch of random inputs, and the steps of one task of the paper's: 10 epochs of MNIST in
# batches of 128; 60 epochs of a fifth of CIFAR-10 in batches of 64.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "MLP-256": (mlp_256, (128, 784), 10 * 469),
    "ConvNet": (partial(ConvNet, 10), (64, 3, 32, 32), 60 * 157),
}
_DEFAULT = DCOKronPlugin()
_BATCH = 32  # of the estimate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="how often steps are timed")
    parser.add_argument("--quick", action="store_true", help="once, with few samples")
    add_out_argument(parser, "kron-speed")


def run(args: argparse.Namespace) -> int:
    """Measure both networks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = 2 * _BATCH if args.quick else _DEFAULT.samples
    rows = [measured(name, 1 if args.quick else args.repeats, samples) for name in CASES]
    frame = pd.DataFrame(rows)
    write_measurements(args.out, frame, provenance(1))
    print(frame.to_string(index=False, float_format="{:.3g}".format))
    return 0


def measured(name: str, repeats: int, samples: int) -> dict[str, Any]:
    """One row."""
    make, shape, steps = CASES[name]
    model = make()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    start = time.process_time()
    curvature = _estimated(model, shape, samples)
    damped = DampedUpdate(curvature, parameters, _DEFAULT.dco_lambda, 0.0, _DEFAULT.damp_every)
    once = time.process_time() - start
    model.train()
    step = partial(_steps, model, optimizer, x, y)
    times = alternately(
        repeats, {"naive": step, "damped": partial(step, damped)}, time.process_time
    )
    naive, kron = (spent / _DEFAULT.damp_every for spent in times.values())
    tensors = [t for f in curvature.layers.values() for t in (f.A, f.S)]
    return {
        "network": name,
        "naive_ms": 1e3 * naive,
        "kron_ms": 1e3 * kron,
        "ratio": kron / naive,
        "once_seconds": once,
        "share_of_a_task": once / (steps * naive),
        "memory_mb": sum(t.numel() * t.element_size() for t in tensors) / 1e6,
    }


def _estimated(model: nn.Module, shape: tuple[int, ...], samples: int) -> Curvature:
    model.eval()
    estimator = CurvatureEstimator(model, dict(model.named_parameters()))
    for _ in range(samples // _BATCH):
        estimator.observe(partial(model, torch.randn(_BATCH, *shape[1:])), _BATCH)
    return estimator.finish()


def _steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    damped: DampedUpdate | None = None,
) -> None:
    for _ in range(_DEFAULT.damp_every):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if damped is not None:
            damped.before_update()
        optimizer.step()
        if damped is not None:
            damped.after_update()
