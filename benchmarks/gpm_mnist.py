"""Measure GPM on 5-task Permuted MNIST and on Split MNIST with the DCO paper's networks.

    python -m benchmarks.gpm_mnist --data-root DIRECTORY [--benchmark permuted] [--method naive]

``DIRECTORY`` holds MNIST as torchvision stores it. One JSON file per run goes to
``benchmarks/results/gpm_mnist``: the matrix of test errors, the command and the versions.
"""

import argparse
import json
import platform
import shlex
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import avalanche
import torch
from avalanche.benchmarks import (
    CLScenario,
    benchmark_from_datasets,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from avalanche.models import MultiTaskModule
from avalanche.training.supervised import Naive
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import load_all_dataset
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from avalanche_dco.gpm_strategy import GPM
from avalanche_dco.plugins.gpm import GPMPlugin

RESULTS = Path(__file__).parent / "results" / "gpm_mnist"
Arrays = tuple[Tensor, Tensor]


def load_mnist(root: str) -> tuple[Arrays, Arrays]:
    """Flat images, normalised as in the paper, and labels, for training and for testing."""

    def tensors(data: Any) -> Arrays:
        return ((data.data.float() / 255 - 0.1307) / 0.3081).flatten(1), data.targets

    train, test = get_mnist_dataset(root)
    return tensors(train), tensors(test)


def make_benchmark(parts: list[tuple[Arrays, Arrays]], task_labels: list[int]) -> CLScenario:
    """One experience per (train, test) pair."""

    def experience(arrays: Arrays, task_label: int) -> Any:
        x, y = arrays
        labels = ConstantSequence(task_label, len(y))
        return AvalancheDataset(
            [TensorDataset(x, y)],
            data_attributes=[
                DataAttribute(y.tolist(), "targets"),
                DataAttribute(labels, "targets_task_labels", use_in_getitem=True),
            ],
        )

    pairs = list(zip(parts, task_labels, strict=True))
    scenario = benchmark_from_datasets(
        train=[experience(train, label) for (train, _), label in pairs],
        test=[experience(test, label) for (_, test), label in pairs],
    )
    return with_task_labels(with_classes_timeline(scenario))


def permuted_mnist(train: Arrays, test: Arrays, seed: int) -> CLScenario:
    """Five experiences; the first keeps the pixels as they are."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(784)] + [torch.randperm(784, generator=generator) for _ in range(4)]
    parts = [((train[0][:, o], train[1]), (test[0][:, o], test[1])) for o in orders]
    return make_benchmark(parts, [0] * len(orders))


def split_mnist(train: Arrays, test: Arrays) -> CLScenario:
    """Five experiences of two digits, labels 0 to 9 kept, with task labels."""

    def part(arrays: Arrays, task: int) -> Arrays:
        chosen = arrays[1] // 2 == task
        return arrays[0][chosen], arrays[1][chosen]

    return make_benchmark([(part(train, t), part(test, t)) for t in range(5)], list(range(5)))


def bias_free_mlp(width: int) -> nn.Sequential:
    """784-width-width-width-10."""
    sizes = [784, width, width, width]
    hidden = [
        module
        for inputs, outputs in pairwise(sizes)
        for module in (nn.Linear(inputs, outputs, bias=False), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 10, bias=False))


class TwoOutputsPerTask(MultiTaskModule):
    """One 10-way layer of which task t answers with the outputs 2t and 2t + 1."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
        """Logits of all ten classes; those of other tasks are minus infinity."""
        tasks = torch.arange(10, device=x.device) // 2
        masked = tasks.unsqueeze(0) != task_labels.to(x.device).unsqueeze(1)
        return self.network(x).masked_fill(masked, float("-inf"))


@torch.no_grad()
def test_errors(strategy: SupervisedTemplate, scenario: CLScenario) -> list[float]:
    """Error in percent on every experience's test data."""
    model = strategy.model.eval()
    errors = []
    for experience in scenario.test_stream:
        x, y, t = load_all_dataset(experience.dataset)
        out = model(x, t) if isinstance(model, MultiTaskModule) else model(x)
        errors.append(100 * (out.argmax(1) != y).float().mean().item())
    return errors


def make_strategy(options: argparse.Namespace) -> SupervisedTemplate:
    """The network of the benchmark, SGD, and GPM or nothing."""
    torch.manual_seed(options.seed)
    permuted = options.benchmark == "permuted"
    model = bias_free_mlp(256) if permuted else TwoOutputsPerTask(bias_free_mlp(100))
    common: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(
            model.parameters(), lr=options.lr, momentum=0.9, weight_decay=options.weight_decay
        ),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 128,
        "train_epochs": options.epochs,
        "eval_mb_size": 1024,
        "evaluator": None,
    }
    if options.method == "naive":
        return Naive(**common)
    return GPM(
        **common,
        threshold=tuple(options.threshold),
        samples=options.samples,
        project_head=permuted,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data-root", required=True, help="directory with torchvision's MNIST")
    parser.add_argument("--benchmark", choices=["permuted", "split"], default="permuted")
    parser.add_argument("--method", choices=["gpm", "naive"], default="gpm")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.95, 0.99])
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Train, print the errors after each experience, write the result."""
    options = parse(arguments)
    train, test = load_mnist(options.data_root)
    scenario = (
        permuted_mnist(train, test, options.seed)
        if options.benchmark == "permuted"
        else split_mnist(train, test)
    )
    strategy = make_strategy(options)
    errors, started = [], time.perf_counter()
    for experience in scenario.train_stream:
        strategy.train(experience, shuffle=True)
        errors.append(test_errors(strategy, scenario))
        print(" ".join(f"{error:6.2f}" for error in errors[-1]), flush=True)
    average = sum(errors[-1]) / len(errors[-1])
    print(f"average error {average:.2f} %")

    shown = {key: value for key, value in vars(options).items() if key != "data_root"}
    flags = shlex.join(a for a in arguments if a not in ("--data-root", options.data_root))
    record = {
        "command": f"python -m benchmarks.gpm_mnist --data-root DATA {flags}".strip(),
        **shown,
        "average_error_percent": average,
        "errors_percent": errors,
        "seconds": time.perf_counter() - started,
        "basis_vectors": {
            name: basis.shape[2]
            for plugin in strategy.plugins
            if isinstance(plugin, GPMPlugin)
            for name, basis in plugin.bases.items()
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "avalanche": avalanche.__version__,
        },
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = (
        RESULTS / f"{options.benchmark}-{options.method}-lr{options.lr:g}-seed{options.seed}.json"
    )
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
