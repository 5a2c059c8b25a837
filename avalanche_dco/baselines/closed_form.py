r"""Per-sample gradients of ``Linear`` and convolution layers, summed without forming them.

Index legend: n samples, l positions (1 for a plain ``Linear``), g groups, o outputs, i inputs.

With the inputs :math:`a_{nl}` of a layer and the gradients :math:`\delta_{nl}` at its outputs,
sample n's gradient is :math:`G_n = \sum_l \delta_{nl} a_{nl}^\top`. With a single position and a
multiplicative f, that is f(ab) = f(a) f(b), :math:`f(G_n) = f(\delta_n) f(a_n)^\top`: one matrix
product sums over all samples. With several positions :math:`G_n` is formed for a few samples at
a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from avalanche_dco.core.layers import (
    Call,
    MatrixLayer,
    as_matrix,
    groups_of,
    input_vectors,
    is_plain,
    is_product,
    output_vectors,
    parameter_owners,
)

Transform = Callable[[Tensor], Tensor]
"""Elementwise and multiplicative, f(ab) = f(a) f(b): ``torch.square`` or ``torch.abs``."""

CHUNK_ELEMENTS = 2**24
"""Elements of per-sample gradients held at a time: 64 MB of float32."""


def single_use_layers(model: nn.Module) -> list[MatrixLayer]:
    """The plain ``Linear`` and convolution layers that train a weight of their own."""
    owners = parameter_owners(model)
    return [
        module
        for module in model.modules()
        if is_plain(module)
        # A weight that is computed from other parameters (weight_norm) is not a parameter.
        and isinstance(module.weight, nn.Parameter)
        and module.weight.requires_grad
        and all(len(owners[parameter]) == 1 for parameter in module.parameters(recurse=False))
    ]


Verdicts = dict[tuple[MatrixLayer, torch.Size], bool]
"""Whether the closed form is exact, for a layer and the shape of its inputs."""


def in_closed_form(
    calls: Sequence[Call], losses: Tensor, verdicts: Verdicts
) -> dict[MatrixLayer, Call]:
    """The layers for which the closed form is exact, with their one call.

    The closed form takes the samples to be in the first dimension of a layer's inputs, and the
    weight to influence the losses through this call only. Sequence-first models, whose batch may
    have as many samples as a sequence has steps, and weights that are used elsewhere too are found
    by a gradient in which each sample has a weight of its own: it equals the closed form's with
    the same weights only if each sample's gradient does.
    """
    times = Counter(call.layer for call in calls)
    once = {
        call.layer: call
        for call in calls
        if times[call.layer] == 1 and _may_have_samples_first(call, len(losses))
    }
    exact = {layer: verdicts.get((layer, call.inputs.shape)) for layer, call in once.items()}
    new = [layer for layer, verdict in exact.items() if verdict is None]
    if new:
        generator = torch.Generator().manual_seed(0)
        of_samples = torch.randn(len(losses), generator=generator).to(losses)
        outputs = [once[layer].outputs for layer in new]
        weights = [layer.weight for layer in new]
        grad = partial(torch.autograd.grad, allow_unused=True, retain_graph=True)
        deltas, gradients = grad(losses.sum(), outputs), grad(losses @ of_samples, weights)
        for layer, delta, gradient in zip(new, deltas, gradients, strict=True):
            if delta is not None and gradient is not None:
                call = once[layer]
                weighted = (of_samples * delta.movedim(0, -1)).movedim(-1, 0)
                d, a = _vectors(layer, call.inputs, weighted)
                direction = torch.randn(a.shape[2], 1, generator=generator).to(gradient)
                expected = as_matrix(gradient, groups=groups_of(layer))
                exact[layer] = is_product(d, a, expected, direction, rtol=1e-3)
                if gradient.any():  # otherwise another batch decides
                    verdicts[layer, call.inputs.shape] = bool(exact[layer])
    return {layer: call for layer, call in once.items() if exact[layer]}


def _may_have_samples_first(call: Call, samples: int) -> bool:
    layer, inputs, _ = call
    batched = inputs.ndim >= 2 if isinstance(layer, nn.Linear) else inputs.ndim == layer.weight.ndim
    return batched and inputs.shape[0] == samples


def transformed_sums(
    layer: MatrixLayer, inputs: Tensor, delta: Tensor, transform: Transform
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sum the transformed gradients of all samples."""
    # (g, n, l, o) and (g, n, l, i)
    deltas, vectors = (v.unflatten(1, (len(inputs), -1)) for v in _vectors(layer, inputs, delta))
    if deltas.shape[2] == 1:
        summed = transform(deltas.squeeze(2)).mT @ transform(vectors.squeeze(2))
    else:
        chunk = max(1, CHUNK_ELEMENTS // layer.weight.numel())
        summed = sum(  # type: ignore[assignment]
            transform(d.mT @ v).sum(1)
            for d, v in zip(deltas.split(chunk, 1), vectors.split(chunk, 1), strict=True)
        )
    yield layer.weight, summed.reshape(layer.weight.shape)
    if layer.bias is not None:
        yield layer.bias, transform(deltas.sum(2)).sum(1).reshape(-1)


def _vectors(layer: MatrixLayer, inputs: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Output gradients (g, n l, o) and inputs (g, n l, i)."""
    inputs, delta = inputs.to(layer.weight), delta.to(layer.weight)  # differ under autocast
    return output_vectors(layer, delta), input_vectors(layer, inputs, bias=False)
