r"""Layers that multiply their inputs by a matrix: ``Linear`` and convolutions, as matrices.

Index legend: n input vectors (samples times positions), g groups (1 unless the convolution is
grouped), o outputs per group, d input dimensions per group (one more with a bias).

A convolution multiplies each *patch* of its input by one matrix. A bias is the weight of a constant
input 1: the constant is appended to every input vector, and the bias to the matrix as its last
column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeGuard, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

MatrixLayer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def is_plain(module: nn.Module) -> TypeGuard[MatrixLayer]:
    """Whether a module is one of these layers; a subclass may do more than multiply."""
    return type(module) in get_args(MatrixLayer)


def rnn_backward_in_eval_mode(model: nn.Module) -> AbstractContextManager[None]:
    """CuDNN has no backward pass of RNNs in eval mode; torch's own kernels have one."""
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()


class Call(NamedTuple):
    """One call of a layer in a forward pass."""

    layer: MatrixLayer
    inputs: Tensor
    outputs: Tensor


@contextmanager
def recorded_calls(layers: Iterable[MatrixLayer]) -> Iterator[list[Call]]:
    """Record the calls of some layers in the forward passes inside the block, in their order."""
    calls: list[Call] = []

    def record(layer: Any, inputs: tuple[Any, ...], by_name: dict[str, Any], outputs: Any) -> Any:
        given = (*inputs, *by_name.values())[0]
        calls.append(Call(layer, given.detach(), outputs))
        return outputs.clone()  # what follows may write into it: ReLU(inplace=True), masks

    handles = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def parameter_owners(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """For every parameter the names of the modules that hold it: several if it is tied."""
    owners: dict[nn.Parameter, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, []).append(name)
    return owners


def groups_of(layer: MatrixLayer) -> int:
    """The number of groups, each with a matrix of its own."""
    return 1 if isinstance(layer, nn.Linear) else layer.groups


def input_vectors(layer: MatrixLayer, inputs: Tensor, *, bias: bool) -> Tensor:
    """The vectors that ``layer`` multiplies by its matrix when it is called with ``inputs``.

    :param bias: whether to append the constant 1 that the bias multiplies.
    :return: shape (g, n, d).
    """
    if isinstance(layer, nn.Linear):
        vectors = inputs.reshape(1, -1, layer.in_features)
    else:
        vectors = unfolded_patches(layer, inputs).permute(1, 0, 3, 2).flatten(1, 2)
    return functional.pad(vectors, (0, 1), value=1.0) if bias else vectors


def output_vectors(layer: MatrixLayer, outputs: Tensor) -> Tensor:
    """The products with these vectors, or their gradients, in the same order.

    :return: shape (g, n, o).
    """
    if isinstance(layer, nn.Linear):
        return outputs.reshape(1, -1, layer.out_features)
    batched = outputs if outputs.dim() == layer.weight.dim() else outputs.unsqueeze(0)
    grouped = batched.reshape(len(batched), layer.groups, layer.out_channels // layer.groups, -1)
    return grouped.permute(1, 0, 3, 2).flatten(1, 2)


def unfolded_patches(layer: MatrixLayer, inputs: Tensor) -> Tensor:
    """The patches a convolution looks at, in the order of its output positions.

    :return: shape (batch, g, channels per group times kernel positions, output positions); the
        third index runs like the flattened weight of one output.
    """
    assert not isinstance(layer, nn.Linear)
    dims = len(layer.kernel_size)
    batched = inputs if inputs.dim() == dims + 2 else inputs.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = functional.pad(batched, _padding(layer), mode=mode)
    for axis in range(dims):
        span = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        windows = windows.unfold(2 + axis, span, layer.stride[axis])[..., :: layer.dilation[axis]]
    # (batch, channels, positions..., kernel...) to (batch, groups, channels, kernel, positions)
    order = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    patches = windows.permute(order).flatten(2 + dims).flatten(2, 1 + dims)
    return patches.unflatten(1, (layer.groups, -1)).flatten(2, 3)


def _padding(layer: MatrixLayer) -> list[int]:
    """Before and after each axis, the last axis first, as ``functional.pad`` wants them."""
    assert not isinstance(layer, nn.Linear)
    sides: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):
        if layer.padding == "valid":
            before, after = 0, 0
        elif layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            before, after = total // 2, total - total // 2
        else:
            before = after = int(layer.padding[axis])
        sides += [before, after]
    return sides


def as_matrix(weight: Tensor, bias: Tensor | None = None, *, groups: int = 1) -> Tensor:
    """A weight and a bias (or their changes or gradients) as the matrix of their layer.

    :return: shape (g, o, d); a view where there is no bias and the memory format allows it.
    """
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    if bias is None:
        return matrix
    return torch.cat([matrix, bias.reshape(groups, -1, 1)], dim=2)


def split_matrix(matrix: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Undo :func:`as_matrix`."""
    if len(shapes) == 1:
        return [matrix.reshape(shapes[0])]
    return [matrix[:, :, :-1].reshape(shapes[0]), matrix[:, :, -1].reshape(shapes[1])]


def write_matrix(matrix: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Undo :func:`as_matrix`, in place."""
    tensors = [weight] if bias is None else [weight, bias]
    for tensor, part in zip(tensors, split_matrix(matrix, [t.shape for t in tensors]), strict=True):
        tensor.copy_(part)


def is_product(delta: Tensor, a: Tensor, gradient: Tensor, direction: Tensor, rtol: float) -> bool:
    """Whether ``delta^T a`` is a layer's gradient, seen through one random direction.

    Two different gradients agree there by chance with probability zero, and nothing as large as a
    gradient is formed. They differ where a weight is used outside of the layer's calls as well.

    :param delta: output gradients, shape (g, n, o).
    :param a: inputs, shape (g, n, d).
    :param gradient: shape (g, o, d).
    :param direction: shape (d, 1).
    :param rtol: relative tolerance; the absolute one is a tenth of it, of the largest value.
    """
    expected = gradient @ direction
    tolerance = 0.1 * rtol * float(expected.abs().max())
    return torch.allclose(delta.mT @ (a @ direction), expected, rtol=rtol, atol=tolerance)


def at_least_single(tensor: Tensor) -> Tensor:
    """In single precision, or in its own if that is higher."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
