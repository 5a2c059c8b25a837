"""Avalanche benchmarks made from tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avalanche.benchmarks import (
    CLScenario,
    benchmark_from_datasets,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from torch import Tensor
from torch.utils.data import TensorDataset

from avalanche_dco.errors import SettingError


def tensor_dataset(x: Tensor, y: Tensor, task_label: int = 0, **arguments: Any) -> AvalancheDataset:
    """A classification data set with a task label.

    :param x: inputs, one per sample.
    :param y: class labels.
    :param task_label: the task of all samples.
    :param arguments: passed on to :class:`AvalancheDataset`.
    """
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
    """A benchmark with one experience per data set, with classes and task labels.

    :param train: data sets of the train stream.
    :param test: data sets of the test stream.
    """
    benchmark = with_task_labels(
        with_classes_timeline(benchmark_from_datasets(train=train, test=test))
    )
    for stream in benchmark.streams.values():
        for experience in stream:
            # A set by default, which MultiHeadClassifier cannot index with.
            experience.classes_in_this_experience = sorted(experience.classes_in_this_experience)
    return benchmark


def first_experiences(benchmark: CLScenario, count: int) -> CLScenario:
    """A benchmark with the first experiences of another.

    :param benchmark: the other one.
    :param count: how many.
    """
    streams = (benchmark.train_stream, benchmark.test_stream)
    if count > len(streams[0]):
        raise SettingError(
            f"--training experiences={count}: the benchmark has {len(streams[0])}; give at most "
            "as many, or leave it out for all."
        )
    train, test = ([experience.dataset for experience in stream[:count]] for stream in streams)
    return tensor_benchmark(train=train, test=test)
