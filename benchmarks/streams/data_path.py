"""Batches cut from tensors instead of fetched sample by sample, so that networks do not wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor

from avalanche_dco.plugins.support.sampling import CACHE_BYTES, are_samples_of, as_tensors
from benchmarks.streams.tensors import StackedDataset


class TensorBatches(SupervisedPlugin):
    """Replaces Avalanche's loaders where that gives the same kind of batches.

    Avalanche fetches every sample of every epoch through its data sets and transformations. This
    plugin fetches each sample once per experience and cuts shuffled batches from the tensors. A
    data set with random transformations, or too large for memory, keeps Avalanche's loader; so
    does one of several tasks, which Avalanche balances within each batch.

    Test sets are kept as tensors from one evaluation to the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tests: dict[tuple[str, int], list[Tensor] | None] = {}

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Train on tensors."""
        dataset = strategy.adapted_dataset
        if len(set(dataset.targets_task_labels)) > 1:
            return
        tensors = _stacked(dataset)
        if tensors is not None:
            strategy.dataloader = ShuffledBatches(tensors, strategy.train_mb_size, dataset)

    def before_eval_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Evaluate on tensors."""
        experience = strategy.experience
        key = (experience.origin_stream.name, experience.current_experience)
        if key not in self._tests:
            self._tests[key] = _stacked(strategy.adapted_dataset)
        tensors = self._tests[key]
        if tensors is not None:
            parts = (tensor.split(strategy.eval_mb_size) for tensor in tensors)
            strategy.dataloader = [list(batch) for batch in zip(*parts, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tests": {}}  # can be fetched again: not part of a checkpoint


def _stacked(dataset: Any) -> list[Tensor] | None:
    """All samples as tensors, the fast way where there is one."""
    tensors = dataset.stacked() if isinstance(dataset, StackedDataset) else None
    small = tensors is not None and sum(tensor.nbytes for tensor in tensors) <= CACHE_BYTES
    if tensors is None or not small or not are_samples_of(dataset, tensors):  # if transformed since
        return as_tensors(dataset)
    return tensors


class ShuffledBatches:
    """All samples once, in a new random order each time.

    :param tensors: one row per sample each.
    :param batch_size: samples per batch; the last may have fewer.
    :param dataset: the data set that the tensors are of, for plugins that draw from it.
    :param generator: of the order; torch's own if None.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        batch_size: int,
        dataset: Any = None,
        generator: torch.Generator | None = None,
    ):
        self._tensors, self._batch_size, self._generator = tensors, batch_size, generator
        self.shuffled_dataset = dataset

    def __len__(self) -> int:
        return math.ceil(len(self._tensors[0]) / self._batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        order = torch.randperm(len(self._tensors[0]), generator=self._generator)
        for indices in order.split(self._batch_size):
            yield [tensor.index_select(0, indices) for tensor in self._tensors]
