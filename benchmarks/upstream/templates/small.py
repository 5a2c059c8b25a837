"""Small streams, networks and strategies for the unittests of the bundle."""

from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.supervised import Naive
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 3
INPUTS = 6


def make_experiences(count: int, split: bool = False, dtype: torch.dtype = torch.float32) -> list:
    """Experiences with the same classes at other places, or each a task with its own."""
    generator = torch.Generator().manual_seed(0)
    datasets = []
    for task in range(count):
        y = torch.arange(48) % CLASSES
        centres = 2 * torch.randn(CLASSES, INPUTS, generator=generator)
        x = (centres[y] + torch.randn(48, INPUTS, generator=generator)).to(dtype)
        if split:
            y = y + task * CLASSES
        tasks = [task if split else 0] * len(y)
        attributes = [
            DataAttribute(y.tolist(), "targets"),
            DataAttribute(tasks, "targets_task_labels", use_in_getitem=True),
        ]
        datasets.append(AvalancheDataset([TensorDataset(x, y)], data_attributes=attributes))
    benchmark = with_task_labels(with_classes_timeline(benchmark_from_datasets(train=datasets)))
    experiences = list(benchmark.train_stream)
    for experience in experiences:  # sets, which MultiHeadClassifier cannot index with
        experience.classes_in_this_experience = sorted(experience.classes_in_this_experience)
    return experiences


def make_mlp(dropout: float = 0.0, outputs: int = CLASSES) -> nn.Sequential:
    """A network with a hidden layer."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(INPUTS, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, outputs)
    )


class MultiHeadMLP(MultiTaskModule):
    """The same with one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU())
        self.classifier = MultiHeadClassifier(8, CLASSES, masking=False)

    def forward(self, x: torch.Tensor, task_labels: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x), task_labels)


def make_strategy(model: nn.Module, *plugins: Any, mb_size: int = 16, **arguments: Any) -> Naive:
    """Naive with plugins."""
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=mb_size,
        train_epochs=2,
        plugins=list(plugins),
        **{"evaluator": None, **arguments},
    )


def train(model: nn.Module, experiences: list, *plugins: Any) -> Naive:
    """Train on experiences one after the other, with the same random numbers."""
    strategy = make_strategy(model, *plugins)
    torch.manual_seed(2)
    for experience in experiences:
        strategy.train(experience)
    return strategy


def weights_of(strategy: Any) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in strategy.model.parameters()])
