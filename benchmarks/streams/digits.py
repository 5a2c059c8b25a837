"""Continual-learning benchmarks on scikit-learn's bundled digits: real data, no download.

1,797 handwritten digits of 8 x 8 pixels, a quarter of them (stratified) kept for testing.
"""

import numpy as np
import torch
from avalanche.benchmarks import CLScenario
from avalanche.benchmarks.utils import AvalancheDataset
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from benchmarks.streams.tensors import tensor_benchmark, tensor_dataset

INPUT_SIZE = 64
NUM_CLASSES = 10

Arrays = tuple[torch.Tensor, torch.Tensor]


def _load() -> tuple[Arrays, Arrays]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )
    mean, std = x_train.mean(), x_train.std()

    def tensors(x: np.ndarray, y: np.ndarray) -> Arrays:
        return torch.from_numpy((x - mean) / std), torch.from_numpy(y.astype(np.int64))

    return tensors(x_train, y_train), tensors(x_test, y_test)


def permuted_digits(n_experiences: int = 5, *, seed: int = 0) -> CLScenario:
    """Domain-incremental: all ten classes in every experience, the pixels permuted anew.

    :param n_experiences: number of experiences; the first keeps the pixels as they are.
    """
    train, test = _load()
    generator = torch.Generator().manual_seed(seed)
    identity = torch.arange(INPUT_SIZE)
    orders = [identity] + [
        torch.randperm(INPUT_SIZE, generator=generator) for _ in range(n_experiences - 1)
    ]
    return tensor_benchmark(
        train=[tensor_dataset(train[0][:, order], train[1]) for order in orders],
        test=[tensor_dataset(test[0][:, order], test[1]) for order in orders],
    )


def split_digits(n_experiences: int = 5) -> CLScenario:
    """Task-incremental: 0/1, 2/3, ... one after the other, with the labels 0 to 9 kept.

    :param n_experiences: number of experiences; must divide ten.
    """
    if NUM_CLASSES % n_experiences:
        raise ValueError(
            f"split_digits(n_experiences={n_experiences}): ten classes do not divide evenly into "
            f"{n_experiences} experiences; use 1, 2, 5 or 10."
        )
    width = NUM_CLASSES // n_experiences

    def part(arrays: Arrays, task: int) -> AvalancheDataset:
        x, y = arrays
        chosen = (y // width) == task
        return tensor_dataset(x[chosen], y[chosen], task)

    train, test = _load()
    return tensor_benchmark(
        train=[part(train, task) for task in range(n_experiences)],
        test=[part(test, task) for task in range(n_experiences)],
    )
