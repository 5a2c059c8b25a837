"""Files with the state of one plugin, which can be opened without trust, and devices to load to."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from avalanche_dco.errors import CheckpointError
from avalanche_dco.persistence.files import is_there, write_alone

if TYPE_CHECKING:  # plugins use this package's checksum
    from avalanche_dco.plugins.support.state import PluginState

MapLocation: TypeAlias = str | torch.device | Mapping[str, str | torch.device] | None
"""One device for everything, or one for each device that was saved from; None: as it was."""


def save_plugin_state(plugin: PluginState, path: str | os.PathLike[str]) -> None:
    """Write ``plugin.state_dict()`` to a file that ``torch.load`` can read.

    >>> from avalanche_dco import DCOKronPlugin
    >>> from avalanche_dco.persistence import load_plugin_state, save_plugin_state
    >>> save_plugin_state(DCOKronPlugin(dco_lambda=10), "kron.pt")
    >>> load_plugin_state(DCOKronPlugin(dco_lambda=10), "kron.pt")

    :param plugin: a plugin of this package.
    :param path: the file; the previous one is replaced once the new one is complete.
    """
    content = io.BytesIO()
    torch.save(plugin.state_dict(), content)
    write_alone(Path(path), content.getbuffer())


def load_plugin_state(
    plugin: PluginState,
    path: str | os.PathLike[str],
    map_location: str | torch.device | None = None,
    model: torch.nn.Module | None = None,
) -> None:
    """Load a file with ``plugin.load_state_dict``; no code in the file is run.

    >>> import torch
    >>> from avalanche_dco import DCOPlugin
    >>> from avalanche_dco.models import MLP
    >>> from avalanche_dco.persistence import load_plugin_state, save_plugin_state
    >>> save_plugin_state(DCOPlugin(k=100), "dco.pt")
    >>> load_plugin_state(DCOPlugin(k=100), "dco.pt", "cpu", MLP(64, hidden_size=50))

    :param plugin: a plugin of the same class as the one that was saved.
    :param path: the file that :func:`save_plugin_state` wrote.
    :param map_location: where to put the tensors, as in ``torch.load``.
    :param model: the model that is going to be trained, to compare with the state immediately.
    """
    if not is_there(Path(path)):
        raise CheckpointError(f"{path} does not exist; save_plugin_state writes such a file.")
    if map_location is not None:
        map_location = existing_device(map_location)
    try:
        state = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # a changed byte can make torch.load fail in any way
        raise CheckpointError(
            f"{path} is damaged, or is not a file of plain tensors: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''} Nothing of it was loaded; put a "
            "copy of it back."
        ) from error
    plugin.load_state_dict(state, model)


def existing_device(device: Any) -> torch.device:
    """The device, after a check that it can hold tensors."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises any of them
        raise CheckpointError(
            f"map_location={device!r} names no device of this machine "
            f"({str(error).splitlines()[0]}). Nothing was loaded; use map_location='cpu', or a "
            "device that torch can use."
        ) from error
    return found


def device_map(map_location: MapLocation) -> dict[str, str] | None:
    """For each device that was saved from, the one to load to.

    As Avalanche reads a single device: whatever was on a GPU goes there.
    """
    if map_location is None:
        return None
    if not isinstance(map_location, Mapping):
        gpus = ["cuda", *(f"cuda:{index}" for index in range(100))]
        return {"cpu": "cpu"} | dict.fromkeys(gpus, str(existing_device(map_location)))
    devices = {str(saved): str(existing_device(to)) for saved, to in map_location.items()}
    if devices.get("cpu", "cpu") != "cpu":
        raise CheckpointError(
            f"map_location={dict(map_location)} moves what was on the CPU, but the "
            "states of random generators have to stay there. Nothing was loaded; to continue on "
            f"that device, write map_location={devices['cpu']!r}."
        )
    for name, same in (("cuda", "cuda:0"), ("cuda:0", "cuda")):  # a strategy may say either
        if name in devices:
            devices.setdefault(same, devices[name])
    return devices
