"""Step 2 of Algorithm 1 on a strategy's model, and the mini-batches of steps 2 and 3."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor
from torch.nn import Parameter
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from avalanche_dco.core.cone import TrajectoryEnds, norm_of, push
from avalanche_dco.plugins.support.checks import refuse_broken
from avalanche_dco.plugins.support.compatibility import replay_beside_the_loader
from avalanche_dco.plugins.support.gradients import criterion_gradients, snapshot, trainable
from avalanche_dco.plugins.support.reporting import Wait, experience_number, progress_bar
from avalanche_dco.plugins.support.sampling import BatchStream, collate_of

_DEFAULT_ARGUMENTS = {
    "collate_fn",
    "drop_last",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "shuffle",
}


class TrainingBatches(NamedTuple):
    """Mini-batches, without end.

    :param of_training: what the strategy trains on, for step 2. Ends early if its loader cannot be
        read again.
    """

    of_task: Iterator[Any]
    of_training: Iterator[Any]
    per_epoch: int


def training_batches(
    strategy: SupervisedTemplate, num_workers: int, *, read: bool = True
) -> TrainingBatches:
    """Batches of the experience that has just been trained on.

    A loader that does nothing but shuffle the experience's data is replaced by a faster stream.
    Any other, such as that of a replay buffer, is read itself, one epoch after another.

    :param read: whether the experience's data are wanted at all; reading them takes about as long
        as an epoch.
    """
    loader, size = strategy.dataloader, strategy.train_mb_size
    shuffled = shuffled_dataset(loader, size)
    is_whole = shuffled is not None and len(shuffled) == len(strategy.adapted_dataset)
    dataset = shuffled if is_whole else strategy.adapted_dataset
    of_task: Iterator[Any] = iter(())
    if read:
        of_task = iter(BatchStream(dataset, size, num_workers=num_workers))
    if is_whole:
        return TrainingBatches(of_task, of_task, len(loader))
    clock = strategy.clock
    # Measured, since a loader may be endless, or have no length.
    per_epoch = -(-clock.train_exp_iterations // max(1, clock.train_exp_epochs))
    return TrainingBatches(of_task, _epochs(loader), per_epoch)


def shuffled_dataset(loader: Any, batch_size: int) -> Any:
    """The data set of a loader that does nothing but shuffle it and cut batches.

    :param loader: Avalanche's default loader, torch's, or one that names the data set that it
        shuffles in an attribute ``shuffled_dataset``.
    """
    if type(loader) is TaskBalancedDataLoader:
        dataset, *others = loader.datasets
        arguments = loader.loader_kwargs
        default = (
            not others
            and loader.batch_sizes == [batch_size]
            and arguments.keys() <= _DEFAULT_ARGUMENTS
            and arguments.get("shuffle")
            and arguments["collate_fn"] == collate_of(dataset)
        )
        return dataset if default else None
    if type(loader) is DataLoader:
        default = (
            type(loader.sampler) is RandomSampler
            and type(loader.batch_sampler) is BatchSampler
            and loader.batch_size == batch_size
            and not loader.sampler.replacement
            and loader.sampler.num_samples == len(loader.sampler.data_source)
            and loader.generator is None
            and loader.collate_fn == collate_of(loader.dataset)
        )
        return loader.dataset if default else None
    return getattr(loader, "shuffled_dataset", None)


def _epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """One epoch after another, until there is an empty one."""
    empty = False
    while not empty:
        empty = True
        for batch in loader:
            empty = False
            yield batch


def can_travel(strategy: SupervisedTemplate) -> bool:
    """Whether step 2 can draw the batches of training; warns if it cannot."""
    if found := replay_beside_the_loader(strategy):
        warn_not_pushed(
            strategy,
            f"{type(found[0]).__name__} trains on samples that do not come from the strategy's "
            "loader, and a push without them would undo their effect. Use push_epochs=0 to switch "
            "the push off, and this warning with it.",
        )
    elif isinstance(strategy.dataloader, Iterator):
        warn_not_pushed(strategy, CANNOT_BE_READ_AGAIN)
    else:
        return True
    return False


CANNOT_BE_READ_AGAIN = (
    "The strategy's loader cannot be read again. Let strategy.dataloader be an object that can be "
    "iterated over several times, such as a DataLoader, or use push_epochs=0."
)


def warn_not_pushed(strategy: SupervisedTemplate, why: str) -> None:
    """Say that the weights are left where step 1 ended."""
    warnings.warn(
        f"Experience {experience_number(strategy)}: the weights are not pushed into the cone and "
        f"stay where training ended. {why}",
        stacklevel=2,
    )


def push_into_cone(
    strategy: SupervisedTemplate,
    batches: Iterator[Any],
    length: int,
    *,
    averaged_points: int,
    theta: float,
    wait: Wait | None = None,
) -> dict[str, Tensor]:
    """Let the optimizer travel on, and step into the cone.

    The optimizer itself makes the steps: what a strategy adds in ``optimizer_step``, such as
    dividing gradients by a loss scale, belongs to its own backward pass.

    :return: x_i*, where training ended if there is no direction to push in; the model is left where
        the trajectory ended.
    """
    parameters = trainable(strategy.model)
    start = snapshot(parameters)
    if length == 0:
        return start
    ends = TrajectoryEnds(length, averaged_points)
    if wait is not None:
        wait.expect(length, "use fewer push_epochs")
    for batch in progress_bar(
        strategy, itertools.islice(batches, length), length, "DCO: push into the cone"
    ):
        _step(strategy, batch, parameters)
        ends.add(list(parameters.values()))
        if wait is not None:
            wait.advance(strategy)
    if not ends.complete:
        warn_not_pushed(strategy, CANNOT_BE_READ_AGAIN)
        return start
    refuse_broken(parameters, "In step 2 (push_epochs)", strategy)
    x_star = push(ends.first, ends.last, theta)
    if x_star is None:
        if length > 1:
            warn_not_pushed(strategy, _why_no_direction(strategy.optimizer, parameters, ends))
        return start
    return dict(zip(parameters, x_star, strict=True))


def _step(strategy: SupervisedTemplate, batch: Any, parameters: dict[str, Parameter]) -> None:
    """One step of the optimizer on the criterion."""

    def criterion() -> Tensor:
        gradients = criterion_gradients(strategy, batch, parameters)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        return strategy.loss

    strategy.optimizer.step(criterion)


_NEXT_TO_NOTHING = 1e-8
_BLOWN_UP = 1e3


def _why_no_direction(
    optimizer: torch.optim.Optimizer, parameters: dict[str, Parameter], ends: TrajectoryEnds
) -> str:
    """What is known of the cause, and the remedy."""
    weights = list(parameters.values())
    moved = norm_of([a - b for a, b in zip(ends.first, ends.last, strict=True)])
    message = (
        f"They do not move in step 2 beyond rounding (by {moved:.2g}, at a norm of "
        f"{norm_of(ends.first):.3g}), so there is no direction to push them in."
    )
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    coarse = {w.dtype for w in weights if torch.finfo(w.dtype).eps > torch.finfo(torch.float32).eps}
    mean_square = norm_of(weights) / sum(w.numel() for w in weights) ** 0.5
    if rate < _NEXT_TO_NOTHING:
        return (
            f"{message} The learning rate is {rate:.2g}: if a scheduler brings it there, put "
            "LRSchedulerPlugin before DCO in the list of plugins, with reset_lr=True."
        )
    if mean_square > _BLOWN_UP:
        return (
            f"{message} The weights have blown up (root mean square {mean_square:.2g}): lower the "
            f"learning rate, {rate:.2g}."
        )
    if all(w.grad is None or not w.grad.any() for w in weights):
        return f"{message} The last gradient is zero."
    if coarse:
        names = ", ".join(sorted(map(str, coarse)))
        eps = max(torch.finfo(dtype).eps for dtype in coarse)
        return (
            f"{message} The weights are {names}, which rounds to {eps:.1g} of a value and loses "
            "smaller updates. Keep the weights in torch.float32 and use torch.autocast."
        )
    return message
