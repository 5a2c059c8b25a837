"""The mini-batches of steps 2 and 3, and whether step 2 can have those that training had."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from avalanche_dco.plugins.support.compatibility import replay_beside_the_loader
from avalanche_dco.plugins.support.reporting import experience_number
from avalanche_dco.plugins.support.sampling import BatchStream, collate_of

if TYPE_CHECKING:
    from avalanche.training.templates import SupervisedTemplate

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
            "loader, and a push without them would undo their effect. Use push_epochs=0 to push "
            "never and to be rid of this warning.",
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
