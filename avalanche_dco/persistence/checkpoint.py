"""Save a strategy between experiences, and continue it in another process."""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import dill
import torch
from avalanche.checkpointing.checkpoint_internals import _CheckpointLoadingContext
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.templates import SupervisedTemplate

from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence.files import is_there, read_sealed, write_sealed
from avalanche_dco.persistence.logs import ResumableLogger, output_paths, outputs_of
from avalanche_dco.persistence.pickling import PICKLE_MODULE
from avalanche_dco.persistence.states import MapLocation, device_map
from avalanche_dco.plugins.support.isolation import difference, grows_by_itself, shapes_of

StrategyT = TypeVar("StrategyT")

_OF_ONE_BATCH = ("dataloader", "adapted_dataset", "mbatch", "mb_output", "loss")
"""Attributes of a strategy that live within an experience; those of the new strategy stay."""


def save_checkpoint(strategy: SupervisedTemplate, path: str | os.PathLike[str]) -> None:
    """Save a strategy after an experience; what Avalanche's ``save_checkpoint`` is meant to do.

    The file holds all that the strategy needs to continue as if it had not been interrupted: model,
    optimizer, plugins, metrics, loggers, counters, and the states of all random generators that
    Avalanche's ``RNGManager`` knows. It is written beside ``path`` and then takes its place, so
    that a crash at any moment leaves the previous checkpoint or the new one.

    >>> import os, tempfile, torch
    >>> from avalanche_dco import DCOKron, save_checkpoint
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(8, hidden_size=4, num_classes=2)
    >>> strategy = DCOKron(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    >>> path = os.path.join(tempfile.mkdtemp(), "run.ckpt")
    >>> save_checkpoint(strategy, path)
    >>> os.path.exists(path)
    True

    :param strategy: the strategy, between two calls of ``train`` or ``eval``.
    :param path: the file; its folder is made if need be.
    """
    if strategy.experience is not None:
        raise CheckpointError(
            "The strategy is in the middle of an experience, or was interrupted there, and a "
            "checkpoint would take half-trained weights for those of a finished experience. Call "
            "save_checkpoint after strategy.train(...) has returned; after an interruption, "
            "build a new strategy and resume from the last checkpoint."
        )
    stripped = copy.copy(strategy)
    for name in _OF_ONE_BATCH:
        stripped.__dict__.pop(name, None)
    content = {
        "strategy": stripped,
        "exp_counter": strategy.clock.train_exp_counter,
        "random_states": RNGManager.__getstate__(),
    }
    about = {
        "finished_experiences": strategy.clock.train_exp_counter,
        "versions": _versions(),
        "outputs": output_paths(strategy),
    }

    payload = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dill.PicklingWarning)
            torch.save(content, payload, pickle_module=PICKLE_MODULE)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
        raise CheckpointError(
            f"The strategy holds something that cannot be saved: {error}. Look for open "
            "connections, locks, generators or running iterators in your plugins, loggers and "
            "model, and leave them out with __getstate__."
        ) from error
    write_sealed(Path(path), about, payload.getbuffer())


def maybe_load_checkpoint(
    strategy: StrategyT,
    path: str | os.PathLike[str],
    map_location: MapLocation = None,
    unique_objects: Any = None,
) -> tuple[StrategyT, int]:
    """Continue from a checkpoint if there is one; called like Avalanche's function of this name.

    Train on ``benchmark.train_stream[first:]`` and save after each experience:

    >>> import torch
    >>> from avalanche_dco import DCOKron, maybe_load_checkpoint
    >>> from avalanche_dco.models import MLP
    >>> model = MLP(8, hidden_size=4, num_classes=2)
    >>> strategy = DCOKron(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    >>> strategy, first = maybe_load_checkpoint(strategy, "run.ckpt")
    >>> first
    0

    Call it right before the loop: it also sets the random generators. All of the strategy comes
    from the file, its settings too; ``strategy.model`` and the plugins are new objects. Only where
    loggers write to is as you have built them, so a run's folder can be moved.

    Like Avalanche's, it unpickles, which runs whatever code the file asks for: open only files
    that you trust. For files of others there is ``plugin.load_state_dict``.

    :param strategy: a strategy, built in the same way as the one that was saved.
    :param path: the file that :func:`save_checkpoint` wrote.
    :param map_location: the device to continue on, or a dictionary with the new device for each
        that it was saved on; None for the same.
    :param unique_objects: objects such as the benchmark whose data sets need not be loaded again;
        see Avalanche's function.
    :return: the strategy, and the number of finished experiences; 0 if there is no file.
    """
    path = Path(path)
    if not is_there(path):
        for logger in strategy.evaluator.loggers:  # type: ignore[attr-defined]
            if isinstance(logger, ResumableLogger):
                logger.restart()
        return strategy, 0
    devices = device_map(map_location)
    about, payload = read_sealed(path)
    try:
        with (
            _CheckpointLoadingContext(devices, unique_objects),
            outputs_of(strategy, about["outputs"]) as outputs,
        ):
            content = torch.load(
                io.BytesIO(payload), pickle_module=dill, map_location=devices, weights_only=False
            )
    except CheckpointError as error:
        raise CheckpointError(f"{path} is undamaged but cannot be rebuilt: {error}") from error
    except Exception as error:  # whatever the classes in it raise when they are rebuilt
        raise CheckpointError(
            f"{path} is undamaged but cannot be rebuilt: {type(error).__name__}: {error}. It was "
            f"written with {_listed(about['versions'])}, and this is {_listed(_versions())}; the "
            "classes of your model, plugins and loggers have to be importable under the names they "
            "had."
        ) from error
    saved = content["strategy"]
    _refuse_other(path, saved, strategy)
    outputs.restore_contents()
    _resume_logs(saved, strategy)
    RNGManager.__setstate__(content["random_states"])
    strategy.__dict__.update(saved.__dict__)
    if isinstance(map_location, str | torch.device):
        _move(strategy, torch.device(map_location))
    return strategy, content["exp_counter"]


def _resume_logs(saved: Any, built: Any) -> None:
    for logger, place in zip(saved.evaluator.loggers, built.evaluator.loggers, strict=False):
        if isinstance(logger, ResumableLogger) and type(logger) is type(place):
            logger.resume_in(place)


def _move(strategy: SupervisedTemplate, device: torch.device) -> None:
    """Bring a strategy that was on a CPU to another device; the plugins follow in training."""
    if strategy.device == device:
        return
    strategy.device = device
    strategy.model.to(device)
    # It knows which parts of an optimizer's state belong where the parameters are.
    strategy.optimizer.load_state_dict(strategy.optimizer.state_dict())


def _refuse_other(path: Path, saved: Any, strategy: SupervisedTemplate) -> None:
    """Raise if the strategy is another one than was saved."""
    for what, there, here in (
        ("the strategy", type(saved).__name__, type(strategy).__name__),
        ("its model", type(saved.model).__name__, type(strategy.model).__name__),
        ("its list of plugins", _kinds(saved.plugins), _kinds(strategy.plugins)),
    ):
        if there != here:
            raise CheckpointError(
                f"{path} belongs to another run: {what} was {there} and is {here}. Build the "
                "strategy as it was, or choose another path."
            )
    change = difference(
        shapes_of(strategy.model),
        shapes_of(saved.model),
        may_grow=grows_by_itself(saved.model),  # after it was built, which the one here just was
        when=("in this model", "in the file"),
    )
    if change:
        raise CheckpointError(
            f"{path} belongs to another model: {change}. Build the model as it was, or choose "
            "another path."
        )


def _kinds(objects: list[Any]) -> str:
    return f"[{', '.join(type(one).__name__ for one in objects)}]"


def _versions() -> dict[str, str]:
    from avalanche_dco import __version__  # noqa: PLC0415

    return {
        "avalanche_dco": __version__,
        "avalanche-lib": version("avalanche-lib"),
        "torch": torch.__version__,
    }


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
