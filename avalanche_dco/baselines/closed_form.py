r"""Per-sample gradients of ``Linear`` and ``Conv2d`` layers, summed without forming them.

Index legend: n samples, l positions (1 for a plain ``Linear``), g groups, o outputs, i inputs.

With the inputs :math:`a_{nl}` of a layer and the gradients :math:`\delta_{nl}` at its outputs,
sample n's gradient is :math:`G_n = \sum_l \delta_{nl} a_{nl}^\top`. With a single position and a
multiplicative f, that is f(ab) = f(a) f(b), :math:`f(G_n) = f(\delta_n) f(a_n)^\top`: one matrix
product sums over all samples. With several positions :math:`G_n` is formed for a few samples at
a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from avalanche_dco.baselines.gradient_projection import ProjectableLayer, unfolded_patches
from avalanche_dco.baselines.layer_recording import parameter_owners

Transform = Callable[[Tensor], Tensor]
"""Elementwise and multiplicative, f(ab) = f(a) f(b): ``torch.square`` or ``torch.abs``."""

CHUNK_ELEMENTS = 2**24
"""Elements of per-sample gradients held at a time: 64 MB of float32."""


class Call(NamedTuple):
    """One call of a layer in a forward pass."""

    inputs: Tensor
    outputs: Tensor


@contextmanager
def recorded_calls(model: nn.Module) -> Iterator[dict[ProjectableLayer, list[Call]]]:
    """Record the calls of the plain ``Linear`` and ``Conv2d`` layers inside the block.

    :param model: the model; layers that share a parameter with others are left out.
    """
    owners = parameter_owners(model)
    calls: dict[ProjectableLayer, list[Call]] = {}

    def record(layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        calls.setdefault(layer, []).append(Call(inputs[0].detach(), outputs))
        return outputs.clone()  # what follows may write into it: ReLU(inplace=True), masks

    handles = [
        module.register_forward_hook(record)
        for module in model.modules()
        # No subclasses: they may do more with the weight than multiply.
        if type(module) in (nn.Linear, nn.Conv2d)
        and module.weight.requires_grad
        and all(len(owners[parameter]) == 1 for parameter in module.parameters(recurse=False))
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def explained_by_call(calls: dict[ProjectableLayer, Call], total: Tensor) -> set[ProjectableLayer]:
    """The layers whose weight influences the total loss through the given call only.

    :param calls: layers, each with one call.
    :param total: the summed loss, whose graph is kept.
    """
    wanted = [call.outputs for call in calls.values()] + [layer.weight for layer in calls]
    gradients = torch.autograd.grad(total, wanted, allow_unused=True, retain_graph=True)
    generator = torch.Generator().manual_seed(0)
    explained = set()
    for (layer, call), delta, weight in zip(
        calls.items(), gradients[: len(calls)], gradients[len(calls) :], strict=True
    ):
        if delta is not None and weight is not None:
            # Compared through one random direction: two different gradients agree there by
            # chance with probability zero, and nothing as large as a gradient is formed.
            deltas, inputs = _factors(layer, call.inputs, delta)
            direction = torch.randn(inputs.shape[2], generator=generator).to(weight)
            along = torch.einsum(
                "ngol,ngl->go", deltas, torch.einsum("ngil,i->ngl", inputs, direction)
            )
            expected = weight.reshape(*along.shape, -1) @ direction
            tolerance = 1e-4 * expected.abs().max().item()
            if torch.allclose(along, expected, rtol=1e-3, atol=tolerance):
                explained.add(layer)
    return explained


def transformed_sums(
    layer: ProjectableLayer, inputs: Tensor, delta: Tensor, transform: Transform
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sum the transformed gradients of all samples.

    :param layer: the layer.
    :param inputs: its inputs, the samples first.
    :param delta: the gradients at its outputs.
    :param transform: ``torch.square`` or ``torch.abs``.
    :return: pairs of a parameter of the layer and its sum.
    """
    deltas, vectors = _factors(layer, inputs, delta)
    if deltas.shape[3] == 1:
        summed = torch.einsum("ngo,ngi->goi", transform(deltas[..., 0]), transform(vectors[..., 0]))
    else:
        chunk = max(1, CHUNK_ELEMENTS // layer.weight.numel())
        summed = sum(  # type: ignore[assignment]
            transform(d @ v.mT).sum(0)
            for d, v in zip(deltas.split(chunk), vectors.split(chunk), strict=True)
        )
    yield layer.weight, summed.reshape(layer.weight.shape)
    if layer.bias is not None:
        yield layer.bias, transform(deltas.sum(3)).sum(0).reshape(-1)


def _factors(layer: ProjectableLayer, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Output gradients (n, g, o, l) and inputs (n, g, i, l)."""
    samples = inputs.shape[0]
    if isinstance(layer, nn.Conv2d):
        deltas = delta.reshape(samples, layer.groups, layer.out_channels // layer.groups, -1)
        return deltas, unfolded_patches(layer, inputs)
    deltas = delta.reshape(samples, 1, -1, layer.out_features)
    return deltas.mT, inputs.reshape(samples, 1, -1, layer.in_features).mT
