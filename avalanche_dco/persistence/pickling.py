"""What the pickles of a checkpoint are made of: dill, with a few corrections."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import dill
import torch
from avalanche.checkpointing import checkpoint_internals
from avalanche.logging import TensorboardLogger, TextLogger

from avalanche_dco.persistence.logs import (
    is_open_for_writing,
    rebuilt_tensorboard_logger,
    rebuilt_text_logger,
    reopened_file,
)


class StrategyPickler(dill.Pickler):
    """Pickles a strategy with everything it refers to.

    * A class that can be imported is a name. dill takes the optimizers of current torch for
      classes without a module and pickles their code, with which ``torch.optim`` as a whole; that
      fails. Only what has no name (a class defined in a function, a lambda) is pickled by value.
    * A text file opened for writing is kept with its content unless it is appended to:
      ``CSVLogger`` empties its files when it is made, which is before a checkpoint is loaded.
    * Loggers write where those of the strategy do that the checkpoint is loaded into.
    * Devices follow ``map_location`` as in Avalanche, without its messages.
    """

    def reducer_override(self, obj: Any) -> Any:
        """How to pickle an object, if otherwise than dill does."""
        if isinstance(obj, type) and _can_be_imported(obj):
            return obj.__qualname__
        if isinstance(obj, torch.device):
            return _mapped_device, (str(obj),)
        if is_open_for_writing(obj):
            obj.flush()
            content = None
            if obj.mode.startswith("w"):
                with open(obj.name, encoding=obj.encoding, newline="") as file:
                    content = file.read()
            return reopened_file, (str(obj.name), obj.mode, obj.encoding, content)
        if isinstance(obj, TextLogger) and is_open_for_writing(obj.file):
            return rebuilt_text_logger, (type(obj), vars(obj))
        if isinstance(obj, TensorboardLogger):
            return rebuilt_tensorboard_logger, (type(obj), obj.__getstate__())
        return NotImplemented


def _can_be_imported(cls: type) -> bool:
    """Whether the class is what is found under its own name."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls


def _mapped_device(name: str) -> torch.device:
    """The device that takes the place of the one that was saved."""
    mapping = checkpoint_internals._get_checkpoint_device_map()
    return torch.device(mapping.get(name, name) if isinstance(mapping, dict) else name)


PICKLE_MODULE: Any = SimpleNamespace(__name__=__name__, Pickler=StrategyPickler)
"""For ``torch.save``, which asks for a module; dill itself and its settings stay as they are."""
