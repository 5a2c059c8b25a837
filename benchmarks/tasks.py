"""The continual-learning benchmarks, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from avalanche.benchmarks import CLScenario
from avalanche.benchmarks.classic import PermutedMNIST, SplitMNIST
from torch import nn

from avalanche_dco.models import MLP, TaskMasked, mlp_100, mlp_256
from benchmarks import digits


@dataclass(frozen=True)
class Task:
    """A stream of experiences and the network that learns it.

    :param build: makes the stream from a seed and the folder that holds the data.
    :param network: makes the network.
    :param expected_files: what the data folder must hold; empty for embedded data.
    """

    build: Callable[[int, Path | None], CLScenario]
    network: Callable[[], nn.Module]
    expected_files: tuple[str, ...] = ()


_MNIST_FILES = tuple(
    f"MNIST/raw/{part}-ubyte"
    for part in (
        "train-images-idx3",
        "train-labels-idx1",
        "t10k-images-idx3",
        "t10k-labels-idx1",
    )
)


def _split_mnist(seed: int, root: Path | None) -> CLScenario:
    return SplitMNIST(5, return_task_id=True, fixed_class_order=list(range(10)), dataset_root=root)


def _permuted_mnist(seed: int, root: Path | None) -> CLScenario:
    return PermutedMNIST(5, seed=seed, dataset_root=root)


def _digits_network() -> MLP:
    return MLP(digits.INPUT_SIZE, hidden_size=100)


TASKS: dict[str, Task] = {
    "permuted-digits": Task(
        lambda seed, root: digits.permuted_digits(5, seed=seed), _digits_network
    ),
    "split-digits": Task(
        lambda seed, root: digits.split_digits(5), lambda: TaskMasked(_digits_network(), 10)
    ),
    "permuted-mnist": Task(_permuted_mnist, mlp_256, _MNIST_FILES),
    "split-mnist": Task(_split_mnist, lambda: TaskMasked(mlp_100(), 10), _MNIST_FILES),
}


def missing_files(name: str, root: Path | None) -> list[str]:
    """Files a benchmark needs that the data folder does not have.

    :param name: name of the benchmark.
    :param root: the data folder.
    """
    expected = TASKS[name].expected_files
    return [file for file in expected if root is None or not (root / file).exists()]
