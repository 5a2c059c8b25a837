"""MNIST and Fashion-MNIST from tensors, which Avalanche reads faster than pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avalanche.benchmarks import CLScenario
from avalanche.benchmarks.datasets.external_datasets.fmnist import get_fmnist_dataset
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from torch import Tensor

from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset


def two_domains(root: Path, *, fashion_first: bool) -> CLScenario:
    """MNIST and Fashion-MNIST one after the other, with the same ten outputs."""
    sets = [get_mnist_dataset(str(root)), get_fmnist_dataset(str(root))]
    if fashion_first:
        sets.reverse()
    return tensor_benchmark(
        train=[tensor_dataset(*flat_tensors(train)) for train, _ in sets],
        test=[tensor_dataset(*flat_tensors(test)) for _, test in sets],
    )


def flat_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """Flat images, normalised by MNIST's mean and deviation as the paper does for both sets."""
    return ((data.data.float() / 255 - 0.1307) / 0.3081).flatten(1), data.targets
