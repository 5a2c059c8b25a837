"""Batches of an experience's data for the methods that look at it once more after training."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader


def loaded_batches(
    dataset: Any, batch_size: int, device: str | torch.device, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and task labels, in order; task 0 where the data have no task labels."""
    collate = getattr(dataset, "collate_fn", None)
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=collate, num_workers=num_workers)
    for batch in loader:
        x, y, task_labels = unpacked(batch)
        yield x.to(device), y.to(device), task_labels


def unpacked(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and task labels; task 0 where the data have no task labels."""
    x, y, *others = batch
    return x, y, others[-1] if others else torch.zeros(len(x), dtype=torch.int64)


def labelled(targets: Tensor, criterion: Any) -> Tensor:
    """Which samples the criterion does not ignore, by ``ignore_index`` or a weight of zero."""
    known = torch.ones_like(targets, dtype=torch.bool)
    ignored = getattr(criterion, "ignore_index", None)
    if ignored is not None and not targets.is_floating_point():  # otherwise probabilities
        known = targets != ignored
        if criterion.weight is not None:
            known[known.clone()] = criterion.weight[targets[known]] != 0
    return known.reshape(len(targets), -1).any(1)
