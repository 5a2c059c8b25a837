"""Avalanche benchmarks made from tensors, which are read faster than pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks import (
    CLScenario,
    benchmark_from_datasets,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.datasets.external_datasets.fmnist import get_fmnist_dataset
from avalanche.benchmarks.datasets.external_datasets.mnist import get_mnist_dataset
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from avalanche_dco.errors import SettingError

SHARE = 0.1
"""Share of each class of each experience that is held out."""


class StackedDataset(AvalancheDataset):
    """A data set that can give all its samples at once.

    Avalanche's own gives one after the other, which takes longer than an epoch of a small network.
    A concatenation of several is not stacked any more.
    """

    _samples: Any = None
    _rows: Tensor | None = None

    @classmethod
    def of(cls, samples: Dataset, y: Tensor, task_label: int, **arguments: Any) -> StackedDataset:
        """Samples with their classes and a task label.

        :param samples: pairs of an input and a class; for a tensor of indices, all of them stacked.
        :param y: the classes.
        :param arguments: of Avalanche's data set, such as transformations; with any, the samples
            can only be had one by one.
        """
        tasks = ConstantSequence(task_label, len(y))
        dataset = cls(
            [samples],
            data_attributes=[
                DataAttribute(y.tolist(), "targets"),
                DataAttribute(tasks, "targets_task_labels", use_in_getitem=True),
            ],
            **arguments,
        )
        if not arguments:
            dataset._samples, dataset._rows = samples, torch.arange(len(y))
        return dataset

    def subset(self, indices: Sequence[int]) -> StackedDataset:
        """Some of the samples."""
        part = super().subset(indices)
        if self._rows is not None:
            rows = torch.as_tensor(indices, dtype=torch.long)
            part._samples, part._rows = self._samples, self._rows[rows]
        return part

    def stacked(self) -> list[Tensor] | None:
        """Inputs, classes and task labels; None if they can only be had one by one."""
        if self._rows is None:
            return None
        tasks = torch.tensor(list(self.targets_task_labels))
        return [*self._samples[self._rows], tasks]


def tensor_dataset(x: Tensor, y: Tensor, task_label: int = 0, **arguments: Any) -> AvalancheDataset:
    """A classification data set with a task label."""
    return StackedDataset.of(TensorDataset(x, y), y, task_label, **arguments)


def tensor_benchmark(
    train: Sequence[AvalancheDataset], test: Sequence[AvalancheDataset]
) -> CLScenario:
    """A benchmark with one experience per data set, with classes and task labels."""
    benchmark = with_task_labels(
        with_classes_timeline(benchmark_from_datasets(train=train, test=test))
    )
    for stream in benchmark.streams.values():
        for experience in stream:
            # A set by default, which MultiHeadClassifier cannot index with.
            experience.classes_in_this_experience = sorted(experience.classes_in_this_experience)
    return benchmark


def first_experiences(benchmark: CLScenario, count: int) -> CLScenario:
    """A benchmark with the first experiences of another."""
    streams = (benchmark.train_stream, benchmark.test_stream)
    if count > len(streams[0]):
        raise SettingError(
            f"--training experiences={count}: the benchmark has {len(streams[0])}; give at most "
            "as many, or leave it out for all."
        )
    train, test = ([experience.dataset for experience in stream[:count]] for stream in streams)
    return tensor_benchmark(train=train, test=test)


def held_out(benchmark: CLScenario, seed: int, share: float = SHARE) -> CLScenario:
    """A benchmark whose test stream is part of the given one's train stream.

    The test data of the given benchmark are not touched. Every class of every experience is
    divided alike; the same seed divides the same way.

    :param share: share of the training samples to hold out, at least one per class.
    """
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for experience in benchmark.train_stream:
        dataset: Any = experience.dataset
        by_class: dict[int, list[int]] = defaultdict(list)
        for index, target in enumerate(dataset.targets):
            by_class[int(target)].append(index)
        training, validation = [], []
        for _, indices in sorted(by_class.items()):
            order = torch.randperm(len(indices), generator=generator).tolist()
            shuffled = [indices[i] for i in order]
            count = max(1, round(share * len(indices)))
            validation += shuffled[:count]
            training += shuffled[count:]
        kept.append(dataset.subset(sorted(training)))
        held.append(dataset.subset(sorted(validation)))
    return tensor_benchmark(train=kept, test=held)


def two_domains(root: Path, *, fashion_first: bool) -> CLScenario:
    """MNIST and Fashion-MNIST one after the other, with the same ten outputs."""
    sets = [get_mnist_dataset(str(root)), get_fmnist_dataset(str(root))]
    if fashion_first:
        sets.reverse()
    return tensor_benchmark(
        train=[tensor_dataset(*flat_tensors(train)) for train, _ in sets],
        test=[tensor_dataset(*flat_tensors(test)) for _, test in sets],
    )


class PermutedPixels(Dataset):
    """Images whose pixels change places when they are asked for, so that none is kept twice.

    :param images: N x 1 x 28 x 28.
    :param permutation: where each pixel of an image comes from.
    """

    def __init__(self, images: Tensor, labels: Tensor, permutation: Tensor):
        self._images, self._labels, self._permutation = images, labels, permutation

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int | Tensor) -> tuple[Tensor, Tensor]:
        images = self._images[index]
        permuted = images.flatten(-3).index_select(-1, self._permutation)
        return permuted.view_as(images), self._labels[index]


def permuted_mnist(root: Path | None, experiences: int, seed: int) -> CLScenario:
    """The samples of Avalanche's PermutedMNIST to the bit, read faster than its pictures.

    They are in the order of their classes; Avalanche has them in that of a Python set of classes,
    which in most experiences is the same.
    """
    draw = np.random.RandomState(seed)
    permutations = [torch.from_numpy(draw.permutation(784)) for _ in range(experiences)]

    def parts(data: Any) -> list[AvalancheDataset]:
        x, y = flat_tensors(data)
        labels, by_class = y.sort(stable=True)
        images = x[by_class].view(-1, 1, 28, 28)
        permuted = [PermutedPixels(images, labels, one) for one in permutations]
        return [StackedDataset.of(one, labels, 0) for one in permuted]

    train, test = get_mnist_dataset(root)
    return tensor_benchmark(train=parts(train), test=parts(test))


def flat_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """Flat images, normalised by MNIST's mean and deviation as the paper does for both sets."""
    return ((data.data.float() / 255 - 0.1307) / 0.3081).flatten(1), data.targets
