"""Estimate the curvature of a network's outputs from one pass over some data.

See :mod:`avalanche_dco.core.kronecker` for what is estimated, and for the index legend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from avalanche_dco.core.kronecker import Curvature, KroneckerFactors
from avalanche_dco.core.layers import (
    MatrixLayer,
    as_matrix,
    at_least_single,
    groups_of,
    input_vectors,
    is_plain,
    is_product,
    output_vectors,
    parameter_owners,
    recorded_calls,
    rnn_backward_in_eval_mode,
)

Gradients = dict[str, Tensor]


class CurvatureEstimator:
    """Kronecker factors of layers, and the diagonal for everything else.

    Call :meth:`observe` for each batch, then :meth:`finish`.

    :param model: the model.
    :param parameters: the parameters whose curvature is wanted, by name.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]):
        self._model = model
        self._parameters = dict(parameters)
        self._layers = _matrix_layers(model, self._parameters)
        self._squares: Gradients = {}
        self._samples = 0

    def observe(self, forward: Callable[[], Tensor], samples: int) -> None:
        """Take in one batch.

        :param forward: runs the model on the batch and returns its outputs.
        :param samples: the number of samples in the batch.
        """
        with rnn_backward_in_eval_mode(self._model):
            with (
                _without_compilation(),
                recorded_calls(layer.module for layer in self._layers) as calls,
            ):
                outputs = forward()
            found = torch.autograd.grad(
                outputs,
                [*(call.outputs for call in calls), *self._parameters.values()],
                grad_outputs=torch.randn_like(outputs),  # e
                allow_unused=True,
            )
        deltas = list(zip(calls, found, strict=False))
        gradients = {
            name: at_least_single(gradient.to_dense() if gradient.is_sparse else gradient)
            for name, gradient in zip(self._parameters, found[len(calls) :], strict=True)
            if gradient is not None
        }
        self._samples += samples
        with torch.no_grad():
            for layer in self._layers:
                pairs = [(c.inputs, d) for c, d in deltas if c.layer is layer.module]
                layer.observe(pairs, gradients, samples)
            in_layers = {name for layer in self._layers if layer.found for name in layer.names}
            for name, gradient in gradients.items():
                if name not in in_layers:
                    self._squares[name] = gradient.square() + self._squares.get(name, 0)

    def finish(self) -> Curvature:
        """The curvature, averaged over all samples."""
        layers = [layer for layer in self._layers if layer.found]
        return Curvature(
            {layer.weight: layer.factors(self._samples) for layer in layers},
            {name: squares / self._samples for name, squares in self._squares.items()},
            tasks=1,
        )


class _Layer:
    """One layer's running sums.

    :param module: the layer.
    :param weight: the name of its weight.
    :param bias: the name of its bias; None if it has none, or none whose curvature is wanted.
    """

    def __init__(self, module: MatrixLayer, weight: str, bias: str | None):
        self.module, self.weight, self.bias = module, weight, bias
        self.names = [weight] if bias is None else [weight, bias]
        self._explained: bool | None = None
        self._shared = False
        """Whether several positions of a sample share the matrix."""
        self._A = self._S = self._trace = torch.zeros(())

    @property
    def found(self) -> bool:
        """Whether the layer has been called, and its calls explain its gradients."""
        return bool(self._explained)

    def observe(
        self, calls: Sequence[tuple[Tensor, Tensor | None]], gradients: Gradients, samples: int
    ) -> None:
        """Take in the calls of one batch.

        :param calls: the inputs of each call, and the gradient at its outputs.
        :param gradients: of all parameters.
        :param samples: the number of samples in the batch.
        """
        reached = [(inputs, delta) for inputs, delta in calls if delta is not None]
        if not reached or self._explained is False:
            return
        bias = self.bias is not None
        a = torch.cat([input_vectors(self.module, x, bias=bias) for x, _ in reached], dim=1)
        delta = torch.cat([output_vectors(self.module, d) for _, d in reached], dim=1)
        a, delta = at_least_single(a), at_least_single(delta)
        gradient = as_matrix(
            *(gradients[name] for name in self.names), groups=groups_of(self.module)
        )
        if self._explained is None:
            direction = torch.randn(a.shape[2], 1, dtype=a.dtype, device=a.device)
            self._explained = is_product(delta, a, gradient, direction, rtol=1e-2)
            if not self._explained:
                return
            self._shared = a.shape[1] > samples
        if self._shared:
            A, S = gradient.mT @ gradient, gradient @ gradient.mT
            trace = gradient.square().sum((1, 2))
        else:
            A, S = a.mT @ a, delta.mT @ delta
            trace = (a.square().sum(2) * delta.square().sum(2)).sum(1)
        self._A, self._S, self._trace = (
            self._A.to(a) + A,
            self._S.to(a) + S,
            self._trace.to(a) + trace,
        )

    def factors(self, samples: int) -> KroneckerFactors:
        """The factors, scaled to the trace of the matrix that their product stands for.

        :param samples: the number of all samples, those that did not reach the layer among them.
        """
        A, S = self._A / samples, self._S / samples
        product = _traces(A) * _traces(S)
        scale = torch.where(product > 0, self._trace / samples / product, 0.0)
        return KroneckerFactors(A, S * scale[:, None, None], self.bias is not None)


def _traces(factor: Tensor) -> Tensor:
    """Of each group."""
    return factor.diagonal(dim1=1, dim2=2).sum(1)


def _without_compilation() -> AbstractContextManager[None]:
    """Compiled models run as written: hooks would make torch compile them anew every time.

    After a few times torch gives up and never runs the compiled model again.
    """
    if hasattr(torch.compiler, "set_stance"):  # torch 2.6
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def _matrix_layers(model: nn.Module, wanted: Mapping[str, nn.Parameter]) -> list[_Layer]:
    """The layers whose weight is wanted and nobody else's."""
    names = {id(parameter): name for name, parameter in wanted.items()}
    owners = parameter_owners(model)
    return [
        _Layer(module, names[id(module.weight)], names.get(id(module.bias)))
        for module in model.modules()
        if is_plain(module)
        and id(module.weight) in names
        and all(len(owners[parameter]) == 1 for parameter in module.parameters(recurse=False))
    ]
