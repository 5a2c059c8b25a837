"""An endless stream of random mini-batches of one experience, fast enough not to be noticed.

Steps 2 and 3 draw tens of thousands of batches per experience, and fetching samples one by one
through Avalanche's data sets and transformations costs more than a forward and backward pass of a
small network. So the samples are fetched once and batches are then cut from tensors, wherever that
gives the same batches: the data set must be deterministic (random augmentation stays random), its
samples must stack independently of each other, and they must fit in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

CACHE_BYTES = 2**30
"""Data sets up to this size are kept as tensors while one experience is processed."""

_CHUNK = 256
_CHECKED_SAMPLES = 16


class BatchStream:
    """Batches drawn without end: the data set in one random order after another.

    Every batch is full, because a last batch of a single sample would break BatchNorm; a data set
    smaller than a batch is one batch. Randomness comes from torch's global generator.
    """

    def __init__(self, dataset: Dataset, batch_size: int, num_workers: int = 0):
        self._dataset = dataset
        self._size = len(dataset)  # type: ignore[arg-type]
        self._batch_size = min(batch_size, self._size)
        self._num_workers = num_workers
        self._tensors = as_tensors(dataset)

    def __iter__(self) -> Iterator[Any]:
        batches, tensors = _index_batches(self._size, self._batch_size), self._tensors
        if tensors is not None:
            return ([tensor[indices] for tensor in tensors] for indices in batches)
        loader = DataLoader(
            self._dataset,
            batch_sampler=batches,
            collate_fn=collate_of(self._dataset),
            num_workers=self._num_workers,
        )
        return iter(loader)


def _index_batches(size: int, batch_size: int) -> Iterator[list[int]]:
    """Endless lists of indices, a new random order whenever one is used up."""
    while True:
        order = torch.randperm(size, device="cpu").tolist()
        for start in range(0, size - batch_size + 1, batch_size):
            yield order[start : start + batch_size]


def collate_of(dataset: Dataset) -> Callable[[list[Any]], Any]:
    return getattr(dataset, "collate_fn", None) or default_collate


def as_tensors(dataset: Dataset) -> list[Tensor] | None:
    """All samples stacked, or None where cutting batches from them would not be the same."""
    collate, size = collate_of(dataset), len(dataset)  # type: ignore[arg-type]
    rng_before = _rng_state()
    tensors: list[Tensor] = []
    for start in range(0, size, _CHUNK):
        chunk = collate([dataset[i] for i in range(start, min(start + _CHUNK, size))])
        if not _is_stack_of_tensors(chunk) or _rng_state() != rng_before:
            return None
        if not tensors:
            if sum(part.nbytes * size // len(part) for part in chunk) > CACHE_BYTES:
                return None
            tensors = [part.new_empty(size, *part.shape[1:]) for part in chunk]
        if not _alike(tensors, chunk):
            return None
        for tensor, part in zip(tensors, chunk, strict=True):
            tensor[start : start + len(part)] = part
    # Transformations that draw random numbers show in a generator's state, above; those that keep
    # their own generator show when a sample is fetched again.
    return tensors if are_samples_of(dataset, tensors) else None


def are_samples_of(dataset: Dataset, tensors: Sequence[Tensor]) -> bool:
    """Whether a few samples, fetched one by one, are the same as their rows of stacked ones.

    That also shows a collate function that treats them differently in company (padding, mixing).
    """
    collate, size = collate_of(dataset), len(tensors[0])
    checked = torch.linspace(0, size - 1, min(_CHECKED_SAMPLES, size), device="cpu").long()
    return all(
        torch.equal(stacked[i], alone[0])
        for i in checked.tolist()
        for stacked, alone in zip(tensors, collate([dataset[i]]), strict=True)
    )


def stacked_sample(dataset: Any) -> list[Tensor]:
    """The first sample, expanded to as many as there are: the size of all, without copies."""
    parts = [torch.as_tensor(part) for part in dataset.eval()[0]]
    return [part.clone().expand(len(dataset), *part.shape) for part in parts]


def _rng_state() -> tuple[Any, ...]:
    _, keys, *position = np.random.get_state(legacy=True)
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        np.asarray(keys).tobytes(),
        tuple(position),
    )


def _is_stack_of_tensors(chunk: Any) -> bool:
    return isinstance(chunk, (list, tuple)) and all(
        isinstance(part, Tensor) and part.ndim > 0 for part in chunk
    )


def _alike(first: Sequence[Tensor], chunk: Sequence[Tensor]) -> bool:
    return len(first) == len(chunk) and all(
        a.shape[1:] == b.shape[1:] and a.dtype == b.dtype for a, b in zip(first, chunk, strict=True)
    )
