"""Where tensors of a file go, known to be there before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from avalanche_dco.errors import CheckpointError

MapLocation: TypeAlias = str | torch.device | Mapping[str, str | torch.device] | None
"""One device for everything, or one for each device that was saved from; None: as it was."""


def existing_device(device: Any) -> torch.device:
    """The device, after a check that it can hold tensors."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises any of them
        raise CheckpointError(
            f"map_location={device!r} names no device that is here ({str(error).splitlines()[0]}). "
            "Nothing was loaded; use map_location='cpu', or a device that torch can use."
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
            f"map_location={dict(map_location)} takes what was on the CPU elsewhere, but the "
            "states of random generators have to stay there. Nothing was loaded; to continue on "
            f"that device, write map_location={devices['cpu']!r}."
        )
    for name, same in (("cuda", "cuda:0"), ("cuda:0", "cuda")):  # a strategy may say either
        if name in devices:
            devices.setdefault(same, devices[name])
    return devices
