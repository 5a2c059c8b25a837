"""Avalanche benchmarks made from tensors, which are read faster than pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from torch.utils.data import TensorDataset

from avalanche_dco.errors import SettingError

SHARE = 0.1
"""Share of each class of each experience that is held out."""


def tensor_dataset(x: Tensor, y: Tensor, task_label: int = 0, **arguments: Any) -> AvalancheDataset:
    """A classification data set with a task label."""
    tasks = ConstantSequence(task_label, len(y))
    return AvalancheDataset(
        [TensorDataset(x, y)],
        data_attributes=[
            DataAttribute(y.tolist(), "targets"),
            DataAttribute(tasks, "targets_task_labels", use_in_getitem=True),
        ],
        **arguments,
    )


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


def flat_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """Flat images, normalised by MNIST's mean and deviation as the paper does for both sets."""
    return ((data.data.float() / 255 - 0.1307) / 0.3081).flatten(1), data.targets
