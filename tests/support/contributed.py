"""The strategies of this package and of the bundle, in one process with a patched Avalanche.

Prints for each whether the weights are the same after the same stream, and runs the example.
"""

import runpy
import sys
from typing import Any

import torch
from avalanche.training import supervised
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn

from avalanche_dco import strategies
from benchmarks.streams.digits import permuted_digits, split_digits
from tests.support.learning import QUICK
from tests.support.small_runs import MultiHeadMLP

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "DCO": ("DCO", {"k": 40}),
    "DCO, trained directions": ("DCO", QUICK),
    "DCO, the paper's penalty": ("DCO", QUICK | {"penalty_step": "gradient", "gamma_1": 0.01}),
    "DCO, other gradients and uncoupled layers": (
        "DCO",
        QUICK | {"gradient_source": "logits", "couple_layers": False},
    ),
    "DCO-COMP": ("DCOComp", {"k": 40}),
    "DCO-COMP, trained directions": ("DCOComp", QUICK),
    "DCO-COMP, the paper's loss": (
        "DCOComp",
        QUICK | {"compression_loss": "directions", "compression_start": "noise"},
    ),
    "DCO-KRON": ("DCOKron", {"samples": 200}),
}
"""What is compared: a strategy's name and its settings."""


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(36, 10),
    )


def weights(strategy_class: Any, settings: dict[str, Any], heads: bool) -> Tensor:
    """All weights after a short stream, of permuted digits or of tasks with heads."""
    torch.manual_seed(0)
    model = MultiHeadMLP() if heads else convolutional()
    benchmark = split_digits() if heads else permuted_digits(2)
    strategy = strategy_class(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        eval_mb_size=256,
        evaluator=EvaluationPlugin(loggers=[]),
        **settings,
    )
    for experience in list(benchmark.train_stream)[:3]:
        strategy.train(experience)
    return torch.cat([p.detach().reshape(-1) for p in strategy.model.parameters()])


def main(example: str) -> None:
    for title, (name, settings) in RUNS.items():
        for heads in (False, True):
            ours = weights(getattr(strategies, name), settings, heads)
            theirs = weights(getattr(supervised, name), settings, heads)
            same = torch.equal(ours, theirs) and bool(ours.isfinite().all())
            print(f"{title}{' with heads' if heads else ''}: {'same' if same else 'DIFFERENT'}")
    sys.argv = [example, "--experiences", "2", "--epochs", "1"]
    runpy.run_path(example, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
