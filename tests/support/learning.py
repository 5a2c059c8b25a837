"""Streams, models and strategies small enough for a test, and what it asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.benchmarks import CLScenario
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_dco.models import MLP
from benchmarks.streams.digits import permuted_digits
from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset

QUICK: dict[str, Any] = {
    "k": 8,
    "directions": "trained",
    "penalty_every": 1,
    "push_epochs": 1,
    "averaged_points": 2,
    "gradients_per_update": 4,
    "autoencoder_updates": 5,
}
"""Settings that make the plugins do everything, briefly."""


def stream(
    inputs: Sequence[Tensor], labels: Sequence[Tensor], tasks: Sequence[int] | None = None
) -> CLScenario:
    """A benchmark with one experience per element; the test stream is the train stream."""
    tasks = tasks or [0] * len(inputs)
    experiences = [tensor_dataset(x, y, t) for x, y, t in zip(inputs, labels, tasks, strict=True)]
    return tensor_benchmark(train=experiences, test=experiences)


def blobs(
    n_experiences: int = 2, samples: int = 48, shape: tuple[int, ...] = (6,), classes: int = 3
) -> CLScenario:
    """Every experience has the same classes, at other places."""
    generator = torch.Generator().manual_seed(3)
    inputs, labels = [], []
    for _ in range(n_experiences):
        y = torch.arange(samples) % classes
        centres = 2 * torch.randn(classes, *shape, generator=generator)
        inputs.append(centres[y] + torch.randn(samples, *shape, generator=generator))
        labels.append(y)
    return stream(inputs, labels)


def split_blobs(n_experiences: int = 2, per_task: int = 2) -> CLScenario:
    """Every experience is a task with classes of its own: 0 1, 2 3, ..."""
    generator = torch.Generator().manual_seed(4)
    inputs, labels = [], []
    for task in range(n_experiences):
        y = torch.arange(48) % per_task
        centres = 2 * torch.randn(per_task, 6, generator=generator)
        inputs.append(centres[y] + torch.randn(48, 6, generator=generator))
        labels.append(y + task * per_task)
    return stream(inputs, labels, list(range(n_experiences)))


def small_mlp(inputs: int = 6, classes: int = 3, hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class GrowingModel(nn.Module):
    """A head that grows with the classes it meets."""

    def __init__(self, hidden: int = 5):
        super().__init__()
        self.body = nn.Linear(6, hidden)
        self.head = IncrementalClassifier(hidden, initial_out_features=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def trained_by(strategy: type[SupervisedTemplate], **settings: Any) -> Tensor:
    """The weights of a small network that a strategy with its plugin has trained."""
    torch.manual_seed(0)
    model = small_mlp()
    torch.manual_seed(11)
    made = strategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        train_mb_size=16,
        train_epochs=2,
        evaluator=EvaluationPlugin(loggers=[]),
        **settings,
    )
    for experience in blobs().train_stream:
        made.train(experience)
    return weights_of(model)


def naive(
    model: nn.Module,
    plugins: Sequence[Any] = (),
    *,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    evaluator: EvaluationPlugin | None = None,
    **arguments: Any,
) -> Naive:
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    defaults: dict[str, Any] = {"train_mb_size": 16, "train_epochs": 2, "eval_mb_size": 64}
    return Naive(
        model=model,
        optimizer=make(model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        plugins=list(plugins),
        evaluator=evaluator or EvaluationPlugin(loggers=[]),
        **(defaults | arguments),
    )


def train(model: nn.Module, benchmark: CLScenario, plugins: Sequence[Any] = (), **arguments: Any):
    """Seeded training on a whole stream; returns the strategy."""
    torch.manual_seed(11)
    strategy = naive(model, plugins, **arguments)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return strategy


def errors_on_two_permutations(plugins: Sequence[Any]) -> list[float]:
    """The error on each of two permutations of the digits after a small network learned both."""
    benchmark = permuted_digits(2)
    torch.manual_seed(0)
    model = MLP(64, hidden_size=32)
    train(
        model,
        benchmark,
        plugins,
        train_epochs=8,
        train_mb_size=32,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    )
    return [error_on(model, experience) for experience in benchmark.test_stream]


def digit_accuracy(
    seed: int,
    plugins: Sequence[Any],
    benchmark: CLScenario,
    make: Callable[..., SupervisedTemplate] = naive,
    **arguments: Any,
) -> float:
    """The share of all classes' test digits that a small network gets right at the end."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    strategy = make(
        model,
        plugins,
        train_epochs=8,
        train_mb_size=32,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        **arguments,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    samples = [sample for experience in benchmark.test_stream for sample in experience.dataset]
    x, y = torch.stack([s[0] for s in samples]), torch.tensor([s[1] for s in samples])
    return (model(x).argmax(1) == y).float().mean().item()


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@torch.no_grad()
def error_on(model: nn.Module, experience: Any) -> float:
    """Share of the experience's samples that a model without task labels gets wrong."""
    x = torch.stack([sample[0] for sample in experience.dataset])
    y = torch.tensor([sample[1] for sample in experience.dataset])
    was_training = model.training
    model.eval()
    wrong = (model(x).argmax(1) != y).float().mean().item()
    model.train(was_training)
    return wrong
