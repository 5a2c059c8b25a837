"""Averages of per-sample gradients' squares or magnitudes, without one backward pass per sample.

``Linear`` and ``Conv2d`` layers have a closed form; all other parameters (batch normalisation,
tied or reused weights, ...) go through ``torch.func.vmap``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from avalanche.models import avalanche_forward
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from avalanche_dco.baselines.closed_form import (
    CHUNK_ELEMENTS,
    Call,
    Transform,
    explained_by_call,
    recorded_calls,
    transformed_sums,
)
from avalanche_dco.baselines.gradient_projection import ProjectableLayer
from avalanche_dco.errors import GradientError, ModelError, SettingError

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss of a batch of outputs and targets; called with batches of one sample."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Inputs, targets, task labels."""


def mean_transformed_gradients(
    model: nn.Module, batches: Iterable[Batch], loss: Loss, transform: Transform
) -> dict[str, Tensor]:
    r"""Average a function of each sample's gradient: :math:`\frac1N \sum_n f(\nabla \ell_n)`.

    :param model: the model, in the mode in which its gradients are wanted; no sample's output may
        depend on another sample, so batch normalisation has to be in eval mode.
    :param batches: inputs, targets and task labels, on the model's device.
    :param loss: the loss, as it is for a batch of one sample.
    :param transform: ``torch.square`` or ``torch.abs``.
    :return: one tensor per parameter, in the order of ``named_parameters``; zero for frozen
        parameters and for those that no sample uses.
    """
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
    verdicts: dict[ProjectableLayer, bool] = {}
    samples = 0
    for batch in batches:
        samples += len(batch[0])
        with torch.enable_grad(), recorded_calls(model) as calls:
            outputs = avalanche_forward(model, batch[0], batch[2])
            total = _losses(outputs, batch[1], loss).sum()
        if not total.isfinite():
            raise GradientError(
                "a sample's loss is not finite, so its gradient says nothing; the training has "
                "diverged (lower the learning rate or the penalty's strength), or the model "
                "answers with infinite outputs (mask them with a large finite number)."
            )
        closed = _in_closed_form(calls, total, len(batch[0]), verdicts)
        done = {p for layer in closed for p in layer.parameters(recurse=False)}
        others = {name: p for p, name in names.items() if p not in done}
        gradients = torch.autograd.grad(
            total,
            [call.outputs for call in closed.values()] + [*others.values()],
            allow_unused=True,
        )
        for (layer, call), delta in zip(closed.items(), gradients, strict=False):
            for parameter, value in transformed_sums(layer, call.inputs, delta, transform):
                if parameter.requires_grad:
                    sums[names[parameter]] += value
        used = [n for n, g in zip(others, gradients[len(closed) :], strict=True) if g is not None]
        for name, value in _vectorised(model, used, batch, outputs.detach(), loss):
            sums[name] += transform(value).sum(0)
    return {name: value / samples for name, value in sums.items()}


def _losses(outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The loss of each sample alone."""
    try:
        return vmap(lambda o, t: loss(o.unsqueeze(0), t.unsqueeze(0)))(outputs, targets)
    except (RuntimeError, ValueError) as error:
        raise SettingError(
            f"the criterion {loss} cannot be vectorised over samples with torch.func.vmap: {error} "
            "Write it with differentiable tensor operations, without .item(), without branches on "
            "values and without in-place writes."
        ) from error


def _in_closed_form(
    calls: dict[ProjectableLayer, list[Call]],
    total: Tensor,
    samples: int,
    verdicts: dict[ProjectableLayer, bool],
) -> dict[ProjectableLayer, Call]:
    """The layers for which the closed form is exact, with their one call.

    Not among them: layers called twice, or with the samples not in the first dimension, or whose
    weight is used elsewhere too; the last is found out once per layer and kept in ``verdicts``.
    """
    once = {
        layer: recorded[0]
        for layer, recorded in calls.items()
        if len(recorded) == 1 and recorded[0].inputs.shape[0] == samples
    }
    new = {layer: call for layer, call in once.items() if layer not in verdicts}
    if new:
        explained = explained_by_call(new, total)
        verdicts.update({layer: layer in explained for layer in new})
    return {layer: call for layer, call in once.items() if verdicts[layer]}


def _vectorised(
    model: nn.Module, names: Sequence[str], batch: Batch, outputs: Tensor, loss: Loss
) -> Iterator[tuple[str, Tensor]]:
    """Per-sample gradients of the named parameters: pairs of a name and (samples, *shape)."""
    if not names:
        return
    tensors = {name: p.detach() for name, p in model.named_parameters()} | dict(
        model.named_buffers()
    )
    chosen = {name: tensors[name] for name in names}

    for x, y, task, whole in _by_task(model, batch, outputs):

        def loss_of_one(
            parameters: dict[str, Tensor], x: Tensor, y: Tensor, task: tuple[int, ...] = task
        ) -> tuple[Tensor, Tensor]:
            out = functional_call(model, tensors | parameters, (x.unsqueeze(0), *task))
            # A multi-task model fills narrower heads up with zeros when it is given a batch.
            out = functional.pad(out, (0, outputs.shape[1] - out.shape[1]))
            return loss(out, y.unsqueeze(0)), out.squeeze(0)

        per_sample = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0))
        size = max(1, CHUNK_ELEMENTS // sum(p.numel() for p in chosen.values()))
        for x_part, y_part, whole_part in zip(
            x.split(size), y.split(size), whole.split(size), strict=True
        ):
            try:
                gradients, alone = per_sample(chosen, x_part, y_part)
            except (RuntimeError, ValueError) as error:
                raise ModelError(
                    f"the per-sample gradients of {list(names)} need torch.func.vmap, which cannot "
                    f"vectorise this model: {error} Freeze these parameters with "
                    "requires_grad_(False), or write the model so that each of them belongs to an "
                    "nn.Linear or nn.Conv2d called once per forward pass."
                ) from error
            if not torch.allclose(alone, whole_part, rtol=1e-3, atol=1e-4):
                raise ModelError(
                    "the model answers to a sample alone otherwise than to the same sample in a "
                    "batch, so per-sample gradients are not defined; replace the layer that mixes "
                    "samples (batch normalisation without running statistics, for example)."
                )
            yield from gradients.items()


def _by_task(
    model: nn.Module, batch: Batch, outputs: Tensor
) -> Iterator[tuple[Tensor, Tensor, tuple[int, ...], Tensor]]:
    """Split a batch by task, because a vectorised model cannot branch on its samples."""
    x, y, task_labels = batch
    if not is_multi_task_module(model):
        yield x, y, (), outputs
        return
    for task in task_labels.unique().tolist():
        chosen = (task_labels == task).to(x.device)
        yield x[chosen], y[chosen], (task,), outputs[chosen]
