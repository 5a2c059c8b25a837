"""Strategies to interrupt: every method of this package, on a stream of small digits.

Also a program, ``python -m tests.support.checkpointed FOLDER STOP METHOD ...``, which for each
method goes on from its checkpoint in the folder if there is one, trains until STOP experiences are
finished, saves after each of them, and prints what the run has come to.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metrics import loss_metrics
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_dco import (
    DCOCompPlugin,
    DCOKronPlugin,
    DCOPlugin,
    GPMPlugin,
    maybe_load_checkpoint,
    save_checkpoint,
    seed_everything,
)
from avalanche_dco.baselines import (
    AGEMPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    OWMPlugin,
    RWalkPlugin,
    SGPPlugin,
    SynapticIntelligencePlugin,
)
from avalanche_dco.metrics import error_metrics
from benchmarks.streams.digits import permuted_digits
from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset

QUICK: dict[str, Any] = {
    "k": 6,
    "directions": "trained",
    "penalty_every": 1,
    "push_epochs": 1,
    "averaged_points": 2,
    "gradients_per_update": 4,
    "autoencoder_updates": 4,
}

PLUGINS: dict[str, Callable[[], SupervisedPlugin]] = {
    "dco": lambda: DCOPlugin(**QUICK, couple_layers=True, gamma_1=0.001),
    "dco-gradient-step": lambda: DCOPlugin(**QUICK, couple_layers=True, penalty_step="gradient"),
    "dco-logits": lambda: DCOPlugin(**QUICK, couple_layers=True, gradient_source="logits"),
    "dco-layers-apart": lambda: DCOPlugin(**QUICK, couple_layers=False),
    "dco-comp-layers-apart": lambda: DCOCompPlugin(**QUICK, couple_layers=False),
    "dco-comp": lambda: DCOCompPlugin(**QUICK, couple_layers=True, compression_updates=3),
    "dco-sampled": lambda: DCOPlugin(6),
    "dco-comp-sampled": lambda: DCOCompPlugin(6, directions="sampled", compression_updates=3),
    "dco-comp-eigen": lambda: DCOCompPlugin(6),
    "dco-kron": lambda: DCOKronPlugin(30.0, samples=40),
    "gpm": lambda: GPMPlugin(0.9, threshold_growth=0.003, samples=40),
    "sgp": lambda: SGPPlugin(0.9, samples=40),
    "owm": lambda: OWMPlugin(1.0),
    "ewc": lambda: EWCPlugin(10.0),
    "ewc-online": lambda: EWCPlugin(10.0, mode="online", decay_factor=0.5),
    "si": lambda: SynapticIntelligencePlugin([1.0, 2.0], eps=0.1, max_importance=None),
    "rwalk": lambda: RWalkPlugin(ewc_lambda=0.1, delta_t=3),
    "mas": lambda: MASPlugin(lambda_reg=0.1),
    "lwf": lambda: LwFPlugin(alpha=1.0, temperature=2.0),
    "a-gem": lambda: AGEMPlugin(patterns_per_experience=20, sample_size=12),
}
"""All plugins whose runs can be interrupted, by name."""


def short_digits(n_experiences: int = 4, samples: int = 96) -> CLScenario:
    """Permuted digits, few of them."""
    whole = permuted_digits(n_experiences)

    def part(experience: Any) -> Any:
        chosen = [experience.dataset[i] for i in range(samples)]
        return tensor_dataset(
            torch.stack([sample[0] for sample in chosen]),
            torch.tensor([sample[1] for sample in chosen]),
        )

    return tensor_benchmark(
        train=[part(experience) for experience in whole.train_stream],
        test=[part(experience) for experience in whole.test_stream],
    )


def make_strategy(method: str, seed: int = 5, **arguments: Any) -> SupervisedTemplate:
    """A strategy with dropout, batch normalisation and Adam: all of them have a state to lose."""
    seed_everything(seed)
    model = nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )
    settings: dict[str, Any] = {
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "train_mb_size": 32,
        "train_epochs": 2,
        "eval_mb_size": 256,
        "evaluator": EvaluationPlugin(
            error_metrics(), loss_metrics(experience=True, epoch=True), loggers=[]
        ),
    }
    return Naive(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        plugins=[PLUGINS[method]()],
        **(settings | arguments),
    )


def finish(strategy: Any, benchmark: CLScenario, first: int, stop: int, path: Any = None) -> None:
    """Train and evaluate from one experience to another, with a checkpoint after each."""
    for experience in benchmark.train_stream[first:stop]:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
        if path is not None:
            save_checkpoint(strategy, path)


def fingerprint(strategy: Any) -> str:
    """A hash of all weights, buffers, optimizer state, metrics, counters and random states."""
    sha = hashlib.sha256()
    for name, tensor in sorted(strategy.model.state_dict().items()):
        sha.update(name.encode() + tensor.numpy().tobytes())
    for _, state in sorted(strategy.optimizer.state_dict()["state"].items()):
        for name, value in sorted(state.items()):
            sha.update(f"{name} {torch.as_tensor(value).tolist()}".encode())
    sha.update(repr(sorted(vars(strategy.clock).items())).encode())
    for name, (x, values) in sorted(strategy.evaluator.get_all_metrics().items()):
        sha.update(f"{name} {x} {[str(value) for value in values]}".encode())
    sha.update(torch.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


def run(method: str, folder: str | Path, stop: int) -> str:
    """Go on from a checkpoint, or start, until ``stop`` experiences are finished."""
    benchmark, path = short_digits(), Path(folder) / f"{method}.ckpt"
    strategy, first = maybe_load_checkpoint(make_strategy(method), path)
    finish(strategy, benchmark, first, stop, path)
    return fingerprint(strategy)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[3:]:
        print(name, run(name, sys.argv[1], int(sys.argv[2])))
