"""Small models and short trainings on scikit-learn's digits, shared by the baselines' tests."""

import random
from collections.abc import Iterable
from typing import Any

import torch
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import Naive
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from benchmarks.streams.digits import permuted_digits, split_digits

PERMUTED = list(permuted_digits(3).train_stream)
SPLIT = list(split_digits().train_stream)[:3]


def mlp(dropout: float = 0.0, width: int = 20) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))


class MultiHeadMLP(MultiTaskModule):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 20), nn.ReLU())
        self.classifier = MultiHeadClassifier(20, masking=False)

    def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
        return self.classifier(self.features(x), task_labels)


class GrowingMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 20), nn.ReLU())
        self.classifier = IncrementalClassifier(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.same(torch.tanh(self.same(x)))))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 10),
    )


class TwoOutputs(nn.Linear):
    """Returns its inputs, too."""

    def forward(self, input: Tensor) -> Any:
        return super().forward(input), input


def of_the_first(outputs: Any, targets: Tensor) -> Tensor:
    """The cross-entropy of the first of several outputs."""
    return nn.functional.cross_entropy(outputs[0], targets)


def naive(model: nn.Module, *plugins: SupervisedPlugin, **arguments: Any) -> Naive:
    """Naive with plugins; SGD with momentum unless an optimizer is given."""
    settings: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 64,
        "eval_mb_size": 256,
        "evaluator": None,
    }
    return Naive(model=model, plugins=list(plugins), **(settings | arguments))


def trained(
    make_model: Any, plugin: SupervisedPlugin | None, experiences: Iterable[Any], **arguments: Any
) -> SupervisedTemplate:
    """Train a model made from the same seed on some experiences."""
    torch.manual_seed(1)
    random.seed(1)  # A-GEM fills its memory with it
    plugins = arguments.pop("plugins", [plugin] if plugin else [])
    strategy = naive(make_model(), *plugins, **arguments)
    for experience in experiences:
        strategy.train(experience)
    return strategy


def same_weights(one: SupervisedTemplate, other: SupervisedTemplate) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
