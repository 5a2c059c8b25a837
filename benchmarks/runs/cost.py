"""What a run costs: gradient evaluations, memory of the process, bytes the method keeps."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.utils import ParamData
from torch import Tensor, nn

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

    :param network: the network.
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
def told_of_gradients(listener: Callable[[], None]) -> Iterator[None]:
    """Have a function called after every batch that is counted.

    :param listener: the function.
    """
    _Gradients.listener = listener
    try:
        yield
    finally:
        _Gradients.listener = None


def dco_gradients(settings: Mapping[str, Any], epochs: int, batches: int) -> int:
    """Gradient evaluations of DCO in one experience: its steps 1, 2 and 3.

    :param settings: DCO's; those of :data:`COUNTED_SETTINGS` matter.
    :param epochs: epochs of step 1.
    :param batches: batches per epoch.
    """
    steps_1_and_2 = (epochs + settings["push_epochs"]) * batches
    return steps_1_and_2 + settings["autoencoder_updates"] * settings["gradients_per_update"]


COUNTED_SETTINGS = ("push_epochs", "autoencoder_updates", "gradients_per_update")
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
    """Bytes a method keeps between experiences: weights, importances, directions, data.

    :param method: the method, which says what it keeps.
    :param strategy: the strategy after training.
    """
    owners = [*strategy.plugins, strategy]
    return sum(_bytes(_attribute(owners, path.split("."))) for path in method.keeps)


def _attribute(owners: list[Any], path: list[str]) -> Any:
    found = next(owner for owner in owners if hasattr(owner, path[0]))
    for name in path:
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    return found


def _bytes(kept: Any) -> int:
    if isinstance(kept, int):
        return kept
    if isinstance(kept, Tensor):
        return kept.nbytes
    if isinstance(kept, AvalancheDataset):
        # As the method is given them: inputs as tensors, target and task label as integers.
        sample = kept.eval()[0]
        return len(kept) * sum(part.nbytes if isinstance(part, Tensor) else 8 for part in sample)
    return sum(map(_bytes, _parts(kept)))


def _parts(kept: Any) -> Iterable[Any]:
    if isinstance(kept, ParamData):
        return [kept.data]
    if isinstance(kept, nn.Module):
        return [*kept.parameters(), *kept.buffers()]
    if isinstance(kept, Mapping):
        return kept.values()
    if isinstance(kept, list | tuple):
        return kept
    if hasattr(kept, "dataset"):  # an experience
        return [kept.dataset]
    raise TypeError(f"do not know how to count the bytes of {type(kept).__name__}")
