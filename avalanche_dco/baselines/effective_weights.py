"""The matrix a layer multiplies its inputs by, also if it is no parameter; no Avalanche in here.

Weight normalisation trains a length and a direction, of which the weight is computed; every weight
has such a length and direction, so it can be written as well as read. Other parametrizations, such
as spectral normalisation, cannot take every weight.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.weight_norm import WeightNorm

from avalanche_dco.core.layers import MatrixLayer, as_matrix, groups_of, write_matrix
from avalanche_dco.errors import ModelError


class _Normed(NamedTuple):
    """What weight normalisation computes a weight from: ``length * direction / |direction|``."""

    length: nn.Parameter
    direction: nn.Parameter
    dim: int


def effective_matrix(layer: MatrixLayer) -> Tensor:
    """Weight and bias as :func:`.as_matrix` has them, computed from the present parameters."""
    normed = _weight_norm(layer)
    weight = (
        layer.weight
        if normed is None
        else torch._weight_norm(normed.direction, normed.length, normed.dim)
    )
    return as_matrix(weight, layer.bias, groups=groups_of(layer))


def set_effective_matrix(layer: MatrixLayer, matrix: Tensor) -> None:
    """Change the parameters so that :func:`effective_matrix` is ``matrix``, up to rounding.

    Under weight normalisation the direction keeps its norm and the length its sign: a weight that
    is already there leaves both as they are.
    """
    normed = _weight_norm(layer)
    if normed is None:
        write_matrix(matrix, layer.weight, layer.bias)
        return
    if torch.equal(matrix, effective_matrix(layer)):
        return
    length, direction, dim = normed
    weight = torch.empty_like(direction)
    write_matrix(matrix, weight, layer.bias)
    norm = torch.norm_except_dim(weight, 2, dim)
    signed = torch.where(length < 0, -norm, norm)
    # A weight of zero has no direction: its length of zero is enough.
    scaled = weight * (torch.norm_except_dim(direction, 2, dim) / signed)
    direction.copy_(torch.where(norm > 0, scaled, direction))
    length.copy_(signed)


def refuse_computed(layers: Mapping[str, MatrixLayer], plugin: str) -> None:
    """Raise if what a trainable layer multiplies by cannot be set to a projection."""
    refused = {
        name: reason
        for name, layer in layers.items()
        if any(parameter.requires_grad for parameter in layer.parameters())
        and (reason := _obstacle(layer)) is not None
    }
    if refused:
        others = [name for name in layers if name not in refused]
        raise ModelError(
            f"{plugin} cannot protect "
            + "; ".join(f"layer '{name}': {reason}" for name, reason in refused.items())
            + ". So what multiplies the inputs cannot be set to its projection. Make it a "
            "parameter again, with torch.nn.utils.parametrize.remove_parametrizations or, for a "
            "hook, with its own function such as torch.nn.utils.remove_spectral_norm"
            + (f"; or leave these layers free to change, with layers={others}." if others else ".")
        )


def _obstacle(layer: MatrixLayer) -> str | None:
    """Why :func:`set_effective_matrix` cannot serve a layer; None if it can."""
    normed = _weight_norm(layer)
    for tensor in ("bias",) if normed else ("weight", "bias"):
        if tensor not in layer._parameters:
            sources = [name for name, _ in layer.named_parameters() if name != "bias"]
            return f"its {tensor} is not a parameter, but computed from {sources}"
    written = {layer.bias, *(normed[:2] if normed else (layer.weight,))}
    others = [name for name, p in layer.named_parameters() if p.requires_grad and p not in written]
    return f"beside weight and bias it trains {others}" if others else None


def _weight_norm(layer: MatrixLayer) -> _Normed | None:
    """Length and direction of a weight-normed weight, by parametrization or by the old hook."""
    if is_parametrized(layer, "weight"):
        chain: Any = layer.get_submodule("parametrizations.weight")
        if len(chain) == 1 and isinstance(chain[0], _WeightNorm):
            return _Normed(chain.original0, chain.original1, chain[0].dim)
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            length, direction = map(layer.get_parameter, ("weight_g", "weight_v"))
            return _Normed(length, direction, hook.dim)
    return None
