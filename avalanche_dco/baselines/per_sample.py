r"""Averages of per-sample gradients' squares or magnitudes, mostly in batches.

A ``Linear`` layer has a closed form. With its inputs :math:`a_n` and the gradients
:math:`\delta_n` at its outputs, sample n has the gradient :math:`\delta_n a_n^\top`. A
multiplicative f, that is f(ab) = f(a) f(b), maps it to :math:`f(\delta_n) f(a_n)^\top`: one matrix
product sums over all samples. All other parameters (convolutions, batch normalisation, tied or
reused weights, ...) go through ``torch.func.vmap``. What cannot be vectorised (LSTM and GRU, models
that return several tensors, ...) gets one backward pass per sample.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from textwrap import shorten

import torch
from avalanche.models import avalanche_forward
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from avalanche_dco.core.layers import (
    Call,
    parameter_owners,
    recorded_calls,
    rnn_backward_in_eval_mode,
)
from avalanche_dco.errors import GradientError, ModelError
from avalanche_dco.plugins.support.isolation import model_kept

Transform = Callable[[Tensor], Tensor]
"""Elementwise and multiplicative, f(ab) = f(a) f(b): ``torch.square`` or ``torch.abs``."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss of a batch of outputs and targets; called with batches of one sample."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Inputs, targets, task labels."""

Sums = Iterator[tuple[str, Tensor]]
"""Names of parameters, each with a sum over samples; a name may come several times."""

Verdicts = dict[tuple[nn.Module, torch.Size], bool]
"""Whether the closed form is exact, for a layer and the shape of its inputs."""

CHUNK_ELEMENTS = 2**24
"""Elements of per-sample gradients held at a time: 64 MB of float32."""

_NotVectorisable = (RuntimeError, ValueError)
"""What ``torch.func.vmap`` raises."""


def mean_transformed_gradients(
    model: nn.Module, batches: Iterable[Batch], loss: Loss, transform: Transform
) -> dict[str, Tensor]:
    r"""Average a function of each sample's gradient: :math:`\frac1N \sum_n f(\nabla \ell_n)`.

    :param model: the model, evaluated in eval mode and restored; no sample's output may depend on
        another sample.
    :return: one tensor per parameter, in the order of ``named_parameters``; zero for frozen
        parameters and for those that no sample uses.
    """
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    verdicts: Verdicts = {}
    samples = 0
    with model_kept(model, weights=False), rnn_backward_in_eval_mode(model):
        model.eval()
        for batch in batches:
            samples += len(batch[0])
            for name, value in _batch_sums(model, batch, loss, transform, verdicts):
                sums[name] += value
    return {name: value / max(samples, 1) for name, value in sums.items()}


def _batch_sums(
    model: nn.Module, batch: Batch, loss: Loss, transform: Transform, verdicts: Verdicts
) -> Sums:
    x, y, task_labels = batch
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad(), recorded_calls(_linear_layers(model)) as calls:
        outputs = avalanche_forward(model, x, task_labels)
    samples_first = _has_samples_first(model, batch, calls, outputs)
    losses = _losses(outputs, y, loss) if samples_first else None
    if losses is None:
        yield from _one_by_one(model, names, batch, loss, transform)
        return
    _refuse_infinite(losses, outputs)
    closed = _in_closed_form(calls, losses, verdicts)
    done = {p for call in closed for p in call.layer.parameters(recurse=False)}
    others = {p: name for p, name in names.items() if p not in done}
    gradients = torch.autograd.grad(
        losses.sum(), [call.outputs for call in closed] + [*others], allow_unused=True
    )
    for (layer, inputs, _), delta in zip(closed, gradients, strict=False):
        if delta is not None:  # otherwise a head that this batch does not use
            # Under autocast, they have another precision than the weights.
            deltas, vectors = (transform(part.to(layer.weight)) for part in (delta, inputs))
            yield names[layer.weight], deltas.mT @ vectors
            if layer.bias in names:
                yield names[layer.bias], deltas.sum(0)
    used = {
        p: others[p]
        for p, gradient in zip(others, gradients[len(closed) :], strict=True)
        if gradient is not None
    }
    if used:
        width = outputs.shape[-1]
        try:
            found = _vectorised(model, [*used.values()], batch, width, loss, transform)
        except _NotVectorisable as error:
            _warn_of_loop("The model", error)
            yield from _one_by_one(model, used, batch, loss, transform)
        else:
            yield from found.items()


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The plain ``Linear`` layers that train a weight of their own."""
    owners = parameter_owners(model)
    return [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        # A weight that is computed from other parameters (weight_norm) is not a parameter.
        and isinstance(module.weight, nn.Parameter)
        and module.weight.requires_grad
        and all(len(owners[parameter]) == 1 for parameter in module.parameters(recurse=False))
    ]


def _in_closed_form(calls: Sequence[Call], losses: Tensor, verdicts: Verdicts) -> list[Call]:
    """The only calls of layers for which the closed form is exact.

    It takes the samples to be in the first dimension of the layer's inputs, and the weight to
    influence the losses through this call only. That is proven by a gradient in which each sample
    has a weight of its own: it equals the closed form's with the same weights only if each sample's
    gradient does.
    """
    times = Counter(call.layer for call in calls)
    once = [c for c in calls if times[c.layer] == 1 and c.inputs.shape[:-1] == losses.shape]
    new = [call for call in once if (call.layer, call.inputs.shape) not in verdicts]
    if new:
        generator = torch.Generator().manual_seed(0)
        of_samples = torch.randn(len(losses), generator=generator).to(losses)
        grad_of = partial(torch.autograd.grad, allow_unused=True, retain_graph=True)
        deltas = grad_of(losses.sum(), [call.outputs for call in new])
        gradients = grad_of(losses @ of_samples, [call.layer.weight for call in new])
        for call, delta, gradient in zip(new, deltas, gradients, strict=True):
            if delta is not None and gradient is not None and gradient.any():
                weighted = (of_samples[:, None] * delta).to(gradient)
                tolerance = 1e-4 * float(gradient.abs().max())
                verdicts[call.layer, call.inputs.shape] = torch.allclose(
                    weighted.mT @ call.inputs.to(gradient), gradient, rtol=1e-3, atol=tolerance
                )
    return [call for call in once if verdicts.get((call.layer, call.inputs.shape))]


def _has_samples_first(
    model: nn.Module, batch: Batch, calls: Sequence[Call], outputs: object
) -> bool:
    """Whether the outputs are one tensor with the samples in its first dimension.

    Refuses a model whose outputs for the first or the last sample alone differ from the batch's.
    """
    x, _, task_labels = batch
    if not (isinstance(outputs, Tensor) and outputs.ndim and len(outputs) == len(x)):
        return False
    ends = [0, -1]
    try:
        with torch.no_grad():
            alone = [avalanche_forward(model, x[[n]], task_labels[[n]]) for n in ends]
    except _NotVectorisable as error:
        raise ModelError(
            f"The model takes a batch of {len(x)} samples but not a sample alone ({error}), so "
            "per-sample gradients are not defined; replace the layer that needs several samples "
            "(batch normalisation without running statistics, for example)."
        ) from error
    if any(one.shape != outputs[:1].shape for one in alone):
        return False
    _refuse_mixing(torch.cat(alone), outputs[ends], _rounding(model, calls, outputs))
    return True


@torch.enable_grad()
def _losses(outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor | None:
    """The loss of each sample alone; None, with a warning, if that cannot be vectorised."""
    try:
        losses = vmap(lambda o, t: loss(o.unsqueeze(0), t.unsqueeze(0)))(outputs, targets)
    except _NotVectorisable as error:
        _warn_of_loop("The criterion", error)
        return None
    return losses.reshape(len(outputs), -1).sum(1)


def _one_by_one(
    model: nn.Module, names: dict[Tensor, str], batch: Batch, loss: Loss, transform: Transform
) -> Sums:
    """The definition: one backward pass per sample, for the parameters that have names."""
    for n in range(len(batch[0])):
        x, y, task_label = (part[n : n + 1] for part in batch)
        with torch.enable_grad():
            alone = avalanche_forward(model, x, task_label)
            value = loss(alone, y).sum()
        _refuse_infinite(value, alone)
        gradients = torch.autograd.grad(value, [*names], allow_unused=True)
        for name, gradient in zip(names.values(), gradients, strict=True):
            if gradient is not None:
                yield name, transform(gradient.to_dense() if gradient.is_sparse else gradient)


def _vectorised(
    model: nn.Module, names: list[str], batch: Batch, width: int, loss: Loss, transform: Transform
) -> dict[str, Tensor]:
    """The named parameters' sums, by ``torch.func.vmap``.

    :param width: of the outputs; a head may have fewer, which Avalanche fills up with zeros.
    """
    tensors = {name: p.detach() for name, p in model.named_parameters()} | dict(
        model.named_buffers()
    )
    chosen = {name: tensors[name] for name in names}
    sums = {name: torch.zeros_like(tensor) for name, tensor in chosen.items()}

    for x, y, task in _by_task(model, batch):

        def loss_of_one(
            parameters: dict[str, Tensor], x: Tensor, y: Tensor, task: tuple[int, ...] = task
        ) -> Tensor:
            out = functional_call(model, tensors | parameters, (x.unsqueeze(0), *task))
            if task:
                out = functional.pad(out, (0, width - out.shape[1]))
            return loss(out, y.unsqueeze(0))

        per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
        size = max(1, CHUNK_ELEMENTS // sum(p.numel() for p in chosen.values()))
        for x_part, y_part in zip(x.split(size), y.split(size), strict=True):
            for name, gradient in per_sample(chosen, x_part, y_part).items():
                sums[name] += transform(gradient).sum(0)
    return sums


def _by_task(model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """Split a batch by task, because a vectorised model cannot branch on its samples."""
    x, y, task_labels = batch
    if not is_multi_task_module(model):
        yield x, y, ()
        return
    for task in task_labels.unique().tolist():
        chosen = (task_labels == task).to(x.device)
        yield x[chosen], y[chosen], (task,)


def _rounding(model: nn.Module, calls: Iterable[Call], outputs: Tensor) -> float:
    """The coarsest rounding on the way to the outputs, of weights or by autocast."""
    dtypes = {outputs.dtype, *(call.outputs.dtype for call in calls)}
    dtypes |= {p.dtype for p in model.parameters()}
    return max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)


def _refuse_mixing(alone: Tensor, whole: Tensor, rounding: float) -> None:
    """Raise if samples have other outputs alone than in the batch, beyond rounding."""
    largest = whole[whole.isfinite()].abs().max().item() if whole.isfinite().any() else 0.0
    rtol, atol = max(1e-3, 10 * rounding), 1e-4 + max(1e-5, 10 * rounding) * largest
    if not torch.allclose(alone.to(whole), whole, rtol=rtol, atol=atol, equal_nan=True):
        raise ModelError(
            "The model's outputs for a sample alone differ from those for the same sample in a "
            "batch, so per-sample gradients are not defined; replace the layer that mixes samples "
            "(batch normalisation without running statistics, for example)."
        )


def _refuse_infinite(losses: Tensor, outputs: object) -> None:
    if losses.isfinite().all():
        return
    if isinstance(outputs, Tensor) and outputs.isfinite().all():
        reason = (
            "though the outputs are finite: the criterion is not defined for a sample alone, or "
            "not for its label."
        )
    else:
        reason = (
            "because the model's outputs are not finite: the training has diverged (lower the "
            "learning rate or the penalty's strength), or the model masks outputs with infinity "
            "(use a large finite number)."
        )
    raise GradientError(f"The loss of a sample is not finite, {reason}")


def _warn_of_loop(what: str, error: Exception) -> None:
    reason = shorten(str(error), 200)
    warnings.warn(
        f"{what} cannot be vectorised over samples ({reason}), so the importances take one "
        "backward pass per sample: they are exact, but slow.",
        stacklevel=3,
    )
