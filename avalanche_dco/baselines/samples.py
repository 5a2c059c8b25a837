"""Batches of an experience's data for the methods that look at it once more after training."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader


def loaded_batches(
    dataset: Any, batch_size: int, device: str | torch.device, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and task labels, in order; task 0 where the data have no task labels.

    :param dataset: the data of an experience.
    :param batch_size: samples per batch.
    :param device: where inputs and targets are put.
    :param num_workers: of the data loader.
    """
    collate = getattr(dataset, "collate_fn", None)
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=collate, num_workers=num_workers)
    for x, y, *others in loader:
        task_labels = others[-1] if others else torch.zeros(len(x), dtype=torch.int64)
        yield x.to(device), y.to(device), task_labels
