"""Averaged Gradient Episodic Memory that samples its memory."""

from collections.abc import Iterator
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.benchmarks.utils.data_loader import GroupBalancedInfiniteDataLoader
from avalanche.models import avalanche_forward
from avalanche.training import plugins
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from avalanche_dco.baselines.shared import CorrectedPlugin, unpacked
from avalanche_dco.core.checked import require
from avalanche_dco.errors import SettingError, StateError
from avalanche_dco.plugins.support.kept import Form, Kept, Shapes
from avalanche_dco.plugins.support.sampling import CACHE_BYTES, as_tensors, stacked_sample


class _AnyLayout(plugins.AGEMPlugin):
    """The projection for gradients in any memory layout."""

    def before_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Compute the reference gradient on a sample of the memory."""
        if self.buffers:
            strategy.model.train()
            strategy.optimizer.zero_grad()
            x, y, task_labels = unpacked(self.sample_from_memory())
            outputs = avalanche_forward(strategy.model, x.to(strategy.device), task_labels)
            strategy._criterion(outputs, y.to(strategy.device)).backward()
            self.reference_gradients = _gradient(strategy.model)
            strategy.optimizer.zero_grad()

    @torch.no_grad()
    def after_backward(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Take off the gradient what would raise the loss on the memory."""
        if not self.buffers:
            return
        current, reference = _gradient(strategy.model), self.reference_gradients
        product = torch.dot(current, reference)
        if product < 0:
            projected = current - reference * (product / torch.dot(reference, reference))
            parameters = list(strategy.model.parameters())
            parts = projected.split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter))


def _gradient(model: nn.Module) -> Tensor:
    """The gradient as one vector; zero for parameters without one, such as other tasks' heads."""
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in model.parameters()
        ]
    )


class _Patterns(Form):
    """Data sets, each as what its samples consist of: inputs, targets, ..., task labels if any."""

    def plain(self, value: list[Any]) -> list[list[Tensor]]:
        return [_patterns(buffer) for buffer in value]

    def read(self, plain: Any, what: str, shapes: Shapes) -> list[AvalancheDataset]:
        for buffer in plain if isinstance(plain, list) else [None]:
            require(
                isinstance(buffer, list)
                and len(buffer) > 1
                and all(isinstance(part, Tensor) and part.ndim > 0 for part in buffer)
                and len({len(part) for part in buffer}) == 1
                and len(buffer[0]) > 0
                and all(_are_labels(part) for part in (buffer[1], *buffer[2:][-1:])),
                f"{what} must be a list of data sets, each a list of tensors: inputs, targets, ...",
            )
        return [_dataset(patterns) for patterns in plain]

    def tensors(self, value: list[Any]) -> list[Tensor]:
        return [tensor for buffer in value for tensor in stacked_sample(buffer)]


class AGEMPlugin(CorrectedPlugin, _AnyLayout):
    """Avalanche's A-GEM with a random sample of the memory for each step.

    Avalanche 0.6.0 reads its memory in a fixed order: the loader is made without ``shuffle``, so
    the same few batches come back in turn. The paper (Chaudhry et al., 2019) draws them at
    random. Besides, a ``sample_size`` smaller than the number of experiences in memory fails in
    the data loader with a batch size of zero; here a ``SettingError`` says so. It also fails
    on gradients that are not contiguous, such as those of ``channels_last`` weights; here any
    layout works.

    >>> from avalanche_dco.baselines import AGEMPlugin
    >>> plugin = AGEMPlugin(200, 64)
    """

    _KEEPS = (Kept("buffers", _Patterns()),)
    _SETTINGS = ("patterns_per_experience", "sample_size")
    _ON_MODEL_DEVICE = False  # patterns go there batch by batch

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Add the experience to the memory."""
        super().after_training_exp(strategy, **kwargs)
        self._finished(strategy)

    _num_workers = 0
    buffer_dataloader: Any
    buffer_dliter: Iterator[Any]

    def update_memory(self, dataset: Any, num_workers: int = 0, **kwargs: Any) -> None:
        """Add an experience to the memory, and shuffle it from now on."""
        if self.sample_size <= len(self.buffers):
            raise SettingError(
                f"AGEMPlugin(sample_size={self.sample_size}) leaves no pattern for each of "
                f"{len(self.buffers) + 1} experiences; write a sample_size of at least the number "
                "of experiences, better some hundreds."
            )
        super().update_memory(dataset, num_workers, **kwargs)
        # A running iterator can be neither saved nor continued bit for bit: it starts when asked.
        self._stop_reading()
        self._num_workers = num_workers

    def sample_from_memory(self) -> Any:
        """A mini-batch drawn from the memory, as many patterns of each experience."""
        if self.buffer_dataloader is None:
            loader = GroupBalancedInfiniteDataLoader(
                self.buffers,
                batch_size=self.sample_size // len(self.buffers),
                shuffle=True,
                num_workers=self._num_workers,
                pin_memory=False,
                persistent_workers=self._num_workers > 0,
            )
            self.buffer_dataloader, self.buffer_dliter = loader, iter(loader)
        return super().sample_from_memory()

    def _stop_reading(self) -> None:
        self.buffer_dataloader = None
        self.buffer_dliter = iter(())

    def _restored(self) -> None:
        self._stop_reading()


def _are_labels(part: Tensor) -> bool:
    return part.ndim == 1 and part.dtype == torch.int64


def _patterns(buffer: Any) -> list[Tensor]:
    stacked = as_tensors(buffer)
    if stacked is None:
        raise StateError(
            "The patterns in A-GEM's memory cannot be written as tensors: they are transformed "
            "at random, differ in shape, or are larger than "
            f"{CACHE_BYTES / 2**30:g} GB. Use save_checkpoint, which keeps the data sets as they "
            "are."
        )
    return stacked


def _dataset(patterns: list[Tensor]) -> AvalancheDataset:
    inputs, targets, *others = (tensor.cpu() for tensor in patterns)
    attributes = [DataAttribute(targets.tolist(), "targets")]
    if others:  # the last ones, where the benchmark has task labels
        tasks = others.pop().tolist()
        attributes.append(DataAttribute(tasks, "targets_task_labels", use_in_getitem=True))
    return AvalancheDataset([TensorDataset(inputs, targets, *others)], data_attributes=attributes)
