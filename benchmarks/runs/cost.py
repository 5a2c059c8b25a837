"""What a run costs: gradient evaluations, memory of the process, bytes the method keeps."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from avalanche_dco.plugins.support.sampling import stacked_sample
from avalanche_dco.plugins.support.state import PluginState
from benchmarks.methods import Method


class _Gradients:
    """The count of this process; not an attribute of a model, which checkpoints would copy."""

    count = 0
    listener: Callable[[], None] | None = None


def count_gradients(network: nn.Module) -> None:
    """Count every batch that goes through a network with gradients on, whoever sends it there.

    Training steps, DCO's steps 2 and 3, the second pass per step of RWalk, A-GEM and LwF, and the
    batches of which EWC and MAS take importances, with the two samples that they try before the
    first step. Evaluation is not counted.
    """
    network.register_forward_hook(_count)


def _count(network: nn.Module, inputs: Any, outputs: Any) -> None:
    if torch.is_grad_enabled():
        _Gradients.count += 1
        if _Gradients.listener is not None:
            _Gradients.listener()


def gradient_evaluations() -> int:
    """Batch gradients counted since the process began."""
    return _Gradients.count


@contextmanager
def listening_to_gradients(listener: Callable[[], None]) -> Iterator[None]:
    """Have a function called after every batch that is counted."""
    _Gradients.listener = listener
    try:
        yield
    finally:
        _Gradients.listener = None


def dco_gradients(settings: Mapping[str, Any], epochs: int, batches: int) -> int:
    """Gradient evaluations of DCO in one experience: its steps 1, 2 and 3."""
    steps_1_and_2 = (epochs + settings["push_epochs"]) * batches
    if settings["directions"] != "trained":
        return steps_1_and_2 + settings["k"]
    return steps_1_and_2 + settings["autoencoder_updates"] * settings["gradients_per_update"]


COUNTED_SETTINGS = ("push_epochs", "autoencoder_updates", "gradients_per_update", "directions", "k")
"""DCO's settings that the number of its gradient evaluations depends on."""
COUNTED_TRAINING = ("epochs", "batch_size")
"""What it depends on of DCO's training."""


class GradientBudget(SupervisedPlugin):
    """Ends the training of every experience after a number of gradient evaluations.

    Give the strategy more epochs than can be needed. What a method computes after training, such as
    importances, comes on top.

    :param budgets: gradient evaluations for each experience.
    """

    def __init__(self, budgets: list[int]):
        super().__init__()
        self.budgets = budgets
        self._spent_before = 0

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Begin to count."""
        self._spent_before = gradient_evaluations()

    def after_training_iteration(self, strategy: SupervisedTemplate, **kwargs: Any) -> None:
        """Stop once the budget is spent."""
        budget = self.budgets[strategy.clock.train_exp_counter]
        if gradient_evaluations() - self._spent_before >= budget:
            strategy.stop_training()


def peak_megabytes() -> float:
    """Peak resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def kept_bytes(method: Method, strategy: SupervisedTemplate) -> int:
    """Bytes a method keeps between experiences: weights, importances, directions, data."""
    plugins = (plugin for plugin in strategy.plugins if isinstance(plugin, PluginState))
    return sum(plugin.memory_bytes for plugin in plugins) + _bytes(method.data(strategy))


def _bytes(data: Any) -> int:
    """Bytes of tensors, data sets, experiences, or collections of them."""
    if isinstance(data, Tensor):
        return data.nbytes
    if isinstance(data, AvalancheDataset):
        return sum(part.nbytes for part in stacked_sample(data))
    if isinstance(data, Mapping | Sequence):
        return sum(map(_bytes, data.values() if isinstance(data, Mapping) else data))
    return _bytes(data.dataset)
