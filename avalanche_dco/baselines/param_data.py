"""Avalanche's ``ParamData``, which its regularisers keep per parameter, as plain tensors."""

from collections.abc import Mapping
from typing import overload

from avalanche.training.utils import ParamData
from torch import Tensor


@overload
def as_tensors(data: Mapping[str, ParamData]) -> dict[str, Tensor]: ...
@overload
def as_tensors(data: None) -> None: ...
def as_tensors(data: Mapping[str, ParamData] | None) -> dict[str, Tensor] | None:
    """Tensors by parameter name; None stays None."""
    return None if data is None else {name: entry.data for name, entry in data.items()}


@overload
def as_param_data(tensors: Mapping[str, Tensor]) -> dict[str, ParamData]: ...
@overload
def as_param_data(tensors: None) -> None: ...
def as_param_data(tensors: Mapping[str, Tensor] | None) -> dict[str, ParamData] | None:
    """The way back, on the tensors' device."""
    if tensors is None:
        return None
    return {
        name: ParamData(name, value.shape, init_tensor=value, device=value.device)
        for name, value in tensors.items()
    }
